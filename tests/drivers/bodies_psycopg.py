"""Replays the bodies of responses through psycopg.

Input: a JSON array of bodies; DATABASE_URL. Output: for each body what idempotency_claim and what idempotency_begin
replay. Invariant: both are the body.
"""

import json
import os
import sys

import psycopg

CLAIM = "SELECT stored_body FROM idempotency_claim('s', %s, 'f', 201, '[]', %s)"
BEGIN = "SELECT outcome, stored_body FROM idempotency_begin('s', %s, 'f')"
FINISH = "SELECT idempotency_finish('s', %s, 201, '[]', %s)"


def claimed(connection, key, body):
    connection.execute(CLAIM, [key, body])
    return connection.execute(CLAIM, [key, body]).fetchone()[0]


def finished(connection, key, body):
    with connection.transaction():
        assert connection.execute(BEGIN, [key]).fetchone()[0] == "won"
        connection.execute(FINISH, [key, body])
    return connection.execute(BEGIN, [key]).fetchone()[1]


with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
    replayed = [
        [claimed(connection, f"claim-{number}", body), finished(connection, f"begin-{number}", body)]
        for number, body in enumerate(json.load(sys.stdin))
    ]
json.dump(replayed, sys.stdout)
