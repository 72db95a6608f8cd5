// JSON shapes of messages, queues and results, both ways, as the Java driver has them. Bodies are base64.
package main

import (
	"encoding/base64"
	"fmt"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// The arguments of one command. A value that is absent reads as its type's zero.
type arguments struct{ raw map[string]any }

func (a arguments) has(name string) bool { _, there := a.raw[name]; return there }

func (a arguments) text(name string) string { value, _ := a.raw[name].(string); return value }

func (a arguments) flag(name string) bool { value, _ := a.raw[name].(bool); return value }

func (a arguments) number(name string) int64 { value, _ := a.raw[name].(float64); return int64(value) }

func (a arguments) milliseconds(name string) time.Duration {
	return time.Duration(a.number(name)) * time.Millisecond
}

func (a arguments) part(name string) arguments {
	value, _ := a.raw[name].(map[string]any)
	return arguments{value}
}

func (a arguments) parts(name string) []arguments {
	values, _ := a.raw[name].([]any)
	found := make([]arguments, 0, len(values))
	for _, value := range values {
		part, _ := value.(map[string]any)
		found = append(found, arguments{part})
	}
	return found
}

// The user whose signature the client's requests bear.
func credentials(args arguments) primitive.Credentials {
	return primitive.Credentials{AccessKey: args.text("access_key"), SecretKey: args.text("secret_key")}
}

// What was started, by name.
type table[T any] struct {
	lock   sync.Mutex
	things map[string]T
}

func (t *table[T]) put(args arguments, thing T) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.things == nil {
		t.things = map[string]T{}
	}
	t.things[args.text("name")] = thing
}

func (t *table[T]) get(args arguments) (T, error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	thing, there := t.things[args.text("name")]
	if !there {
		return thing, fmt.Errorf("nothing started as %s", args.text("name"))
	}
	return thing, nil
}

func (t *table[T]) take(args arguments) (T, bool) {
	t.lock.Lock()
	defer t.lock.Unlock()
	thing, there := t.things[args.text("name")]
	delete(t.things, args.text("name"))
	return thing, there
}

// Clients of one process stay apart by their instance names.
func instanceName(args arguments) string {
	return fmt.Sprintf("%s-%d", args.text("name"), time.Now().UnixNano())
}

func nameServers(args arguments) primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{args.text("namesrv")})
}

func messageFrom(from arguments) (*primitive.Message, error) {
	body, err := base64.StdEncoding.DecodeString(from.text("body"))
	if err != nil {
		return nil, err
	}
	message := primitive.NewMessage(from.text("topic"), body)
	message.Flag = int32(from.number("flag"))
	if from.has("tag") {
		message.WithTag(from.text("tag"))
	}
	if from.has("keys") {
		message.WithKeys([]string{from.text("keys")})
	}
	if from.has("delay_level") {
		message.WithDelayTimeLevel(int(from.number("delay_level")))
	}
	if from.has("shard") {
		message.WithShardingKey(from.text("shard"))
	}
	for _, group := range []string{"properties", "times"} {
		properties := from.part(group)
		for name := range properties.raw {
			message.WithProperty(name, properties.text(name))
		}
	}
	return message, nil
}

// The messages of a command, each for the command's "queue" if it names one.
func messagesFrom(args arguments) ([]*primitive.Message, error) {
	var messages []*primitive.Message
	for _, from := range args.parts("messages") {
		message, err := messageFrom(from)
		if err != nil {
			return nil, err
		}
		if args.has("queue") {
			message.Queue = queueFrom(args.part("queue"))
		}
		messages = append(messages, message)
	}
	return messages, nil
}

func queueFrom(from arguments) *primitive.MessageQueue {
	return &primitive.MessageQueue{
		Topic: from.text("topic"), BrokerName: from.text("broker"), QueueId: int(from.number("queue_id")),
	}
}

func queueShape(queue *primitive.MessageQueue) map[string]any {
	return map[string]any{"topic": queue.Topic, "broker": queue.BrokerName, "queue_id": queue.QueueId}
}

func messageShape(message *primitive.MessageExt) map[string]any {
	return map[string]any{
		"topic":             message.Topic,
		"queue_id":          message.Queue.QueueId,
		"queue_offset":      message.QueueOffset,
		"log_position":      message.CommitLogOffset,
		"stored_bytes":      message.StoreSize,
		"message_id":        message.MsgId,
		"offset_message_id": message.OffsetMsgId,
		"tag":               message.GetTags(),
		"keys":              message.GetKeys(),
		"properties":        message.GetProperties(),
		"body":              base64.StdEncoding.EncodeToString(message.Body),
		"flag":              message.Flag,
		"sys_flag":          message.SysFlag,
		"born_time_ms":      message.BornTimestamp,
		"store_time_ms":     message.StoreTimestamp,
		"reconsume_times":   message.ReconsumeTimes,
	}
}

func messageShapes(messages []*primitive.MessageExt) []any {
	shapes := make([]any, 0, len(messages))
	for _, message := range messages {
		shapes = append(shapes, messageShape(message))
	}
	return shapes
}

var sendStatuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func resultShape(result *primitive.SendResult) map[string]any {
	return map[string]any{
		"status":            sendStatuses[result.Status],
		"message_id":        result.MsgID,
		"offset_message_id": result.OffsetMsgID,
		"queue":             queueShape(result.MessageQueue),
		"queue_offset":      result.QueueOffset,
		"transaction_id":    result.TransactionID,
		"region":            result.RegionID,
	}
}
