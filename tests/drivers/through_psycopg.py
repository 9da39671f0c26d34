"""A consumer that has its connection from psycopg, and its messages from standard input.

Input: ids of messages, one a line; DATABASE_URL. Output: each id, once its effect is committed.
Invariant: marker, effect and outbox row are one transaction.
"""

import os
import sys

import psycopg


def process(connection, message_id):
    with connection.transaction():
        marked = connection.execute("SELECT inbox_mark('psycopg', %s)", [message_id])
        if marked.fetchone()[0]:
            connection.execute("INSERT INTO effects (message_id) VALUES (%s)", [message_id])
            connection.execute("SELECT outbox_append('effect', %s, 'EffectHad', '{}')", [message_id])


with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
    for line in sys.stdin:
        process(connection, line.strip())
        print(line.strip(), flush=True)
