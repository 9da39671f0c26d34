// A relay as one writes it by hand with the usual libraries of Go: jackc/pglogrepl and twmb/franz-go.
//
// Reads a slot of the table outbox, writes each row to the topic of its event type behind a prefix, and acknowledges once a
// second what the brokers have confirmed. Settings come from the environment: DSN (with replication=database), SLOT, BROKERS,
// PREFIX, and LINGER_MS, how long the producer may wait for more records. At least once, acks=all, idempotent, as kgo does unless told otherwise.
package main

import (
	"context"
	"log"
	"os"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/twmb/franz-go/pkg/kgo"
)

// How often Postgres is told.
const statusInterval = time.Second

// Where the columns of the outbox are in its relation.
type columns struct{ id, key, topic, payload int }

func columnsOf(relation *pglogrepl.RelationMessage) columns {
	found := map[string]int{}
	for index, column := range relation.Columns {
		found[column.Name] = index
	}
	return columns{found["id"], found["aggregate_id"], found["event_type"], found["payload"]}
}

type relay struct {
	connection *pgconn.PgConn
	producer   *kgo.Client
	prefix     string
	relations  map[uint32]columns
	topics     map[string]string
	// Behind the last transaction whose rows have been given to the producer.
	read pglogrepl.LSN
}

func main() {
	ctx := context.Background()
	connection, err := pgconn.Connect(ctx, os.Getenv("DSN"))
	check(err)
	linger, err := time.ParseDuration(os.Getenv("LINGER_MS") + "ms")
	check(err)
	producer, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("BROKERS"), ",")...),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()),
		kgo.ProducerLinger(linger),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	)
	check(err)
	check(pglogrepl.StartReplication(ctx, connection, os.Getenv("SLOT"), 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'postrider'"},
	}))
	relay := relay{connection, producer, os.Getenv("PREFIX"), map[uint32]columns{}, map[string]string{}, 0}
	next := time.Now().Add(statusInterval)
	for {
		if time.Now().After(next) {
			relay.acknowledge(ctx)
			next = time.Now().Add(statusInterval)
		}
		relay.receive(ctx, next)
	}
}

func (r *relay) receive(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	message, err := r.connection.ReceiveMessage(ctx)
	if pgconn.Timeout(err) {
		return
	}
	check(err)
	data, ok := message.(*pgproto3.CopyData)
	if !ok {
		log.Fatalf("unexpected %T: %v", message, message)
	}
	if data.Data[0] != pglogrepl.XLogDataByteID {
		return
	}
	frame, err := pglogrepl.ParseXLogData(data.Data[1:])
	check(err)
	decoded, err := pglogrepl.Parse(frame.WALData)
	check(err)
	switch decoded := decoded.(type) {
	case *pglogrepl.RelationMessage:
		r.relations[decoded.RelationID] = columnsOf(decoded)
	case *pglogrepl.InsertMessage:
		r.produce(decoded)
	case *pglogrepl.CommitMessage:
		r.read = decoded.TransactionEndLSN
	}
}

func (r *relay) produce(insert *pglogrepl.InsertMessage) {
	columns, row := r.relations[insert.RelationID], insert.Tuple.Columns
	event := string(row[columns.topic].Data)
	topic, ok := r.topics[event]
	if !ok {
		topic = r.prefix + event
		r.topics[event] = topic
	}
	record := &kgo.Record{
		Topic:   topic,
		Key:     row[columns.key].Data,
		Value:   row[columns.payload].Data,
		Headers: []kgo.RecordHeader{{Key: "id", Value: row[columns.id].Data}},
	}
	// Blocks while ten thousand records are under way.
	r.producer.Produce(context.Background(), record, func(_ *kgo.Record, err error) { check(err) })
}

// Waits for all that was produced, and tells Postgres.
func (r *relay) acknowledge(ctx context.Context) {
	read := r.read
	check(r.producer.Flush(ctx))
	check(pglogrepl.SendStandbyStatusUpdate(ctx, r.connection, pglogrepl.StandbyStatusUpdate{WALWritePosition: read}))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
