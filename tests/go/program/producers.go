// Producers by name, every way of sending, and requests.
package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var producers table[rocketmq.Producer]

// The client's own selectors: the message's queue, else by its sharding key, else one after another.
type selector struct{ manual, hash, round producer.QueueSelector }

func newSelector() producer.QueueSelector {
	return selector{producer.NewManualQueueSelector(), producer.NewHashQueueSelector(), producer.NewRoundRobinQueueSelector()}
}

func (s selector) Select(
	message *primitive.Message, queues []*primitive.MessageQueue, lastBroker string,
) *primitive.MessageQueue {
	switch {
	case message.Queue != nil:
		return s.manual.Select(message, queues, lastBroker)
	case message.GetShardingKey() != "":
		return s.hash.Select(message, queues, lastBroker)
	}
	return s.round.Select(message, queues, lastBroker)
}

func producerOptions(args arguments) []producer.Option {
	options := []producer.Option{
		producer.WithGroupName(args.text("group")),
		producer.WithInstanceName(instanceName(args)),
		producer.WithNsResolver(nameServers(args)),
		producer.WithSendMsgTimeout(5 * time.Second),
		producer.WithQueueSelector(newSelector()),
		producer.WithRetry(2),
	}
	if args.has("compress_over_bytes") {
		options = append(options, producer.WithCompressMsgBodyOverHowmuch(int(args.number("compress_over_bytes"))))
	}
	if args.has("access_key") {
		options = append(options, producer.WithCredentials(credentials(args)))
	}
	return options
}

func init() {
	commands["producer_start"] = func(args arguments) (any, error) {
		made, err := rocketmq.NewProducer(producerOptions(args)...)
		if err != nil {
			return nil, err
		}
		producers.put(args, made)
		if _, err := startAdmin(args); err != nil { // It answers for the producers' queues.
			return nil, err
		}
		return nil, made.Start()
	}
	commands["producer_stop"] = func(args arguments) (any, error) {
		if made, there := producers.take(args); there {
			return nil, made.Shutdown()
		}
		return nil, nil
	}
	commands["send"] = send
	commands["send_ordered"] = send // By "shard": the client's hash selector.
	commands["send_timed"] = send   // By "times" of each message. The client knows of no recall handles.
	commands["send_async"] = sendAsync
	commands["send_oneway"] = sendOneway
	commands["send_batch"] = sendBatch
	commands["request"] = request
}

// Sends the messages one after another. Returns one result each.
func send(args arguments) (any, error) {
	made, err := producers.get(args)
	if err != nil {
		return nil, err
	}
	messages, err := messagesFrom(args)
	if err != nil {
		return nil, err
	}
	var results []any
	for _, message := range messages {
		result, err := made.SendSync(context.Background(), message)
		if err != nil {
			return nil, err
		}
		results = append(results, resultShape(result))
	}
	return results, nil
}

func sendAsync(args arguments) (any, error) {
	made, err := producers.get(args)
	if err != nil {
		return nil, err
	}
	messages, err := messagesFrom(args)
	if err != nil {
		return nil, err
	}
	type outcome struct {
		result *primitive.SendResult
		err    error
	}
	pending := make([]chan outcome, len(messages))
	for index, message := range messages {
		done := make(chan outcome, 2)
		pending[index] = done
		report := func(_ context.Context, result *primitive.SendResult, err error) { done <- outcome{result, err} }
		if err := made.SendAsync(context.Background(), report, message); err != nil {
			return nil, err
		}
	}
	var results []any
	for _, done := range pending {
		select {
		case got := <-done:
			if got.err != nil {
				return nil, got.err
			}
			results = append(results, resultShape(got.result))
		case <-time.After(30 * time.Second):
			return nil, fmt.Errorf("a callback did not come")
		}
	}
	return results, nil
}

func sendOneway(args arguments) (any, error) {
	made, err := producers.get(args)
	if err != nil {
		return nil, err
	}
	messages, err := messagesFrom(args)
	if err != nil {
		return nil, err
	}
	for _, message := range messages {
		if err := made.SendOneWay(context.Background(), message); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func sendBatch(args arguments) (any, error) {
	made, err := producers.get(args)
	if err != nil {
		return nil, err
	}
	messages, err := messagesFrom(args)
	if err != nil {
		return nil, err
	}
	result, err := made.SendSync(context.Background(), messages...)
	if err != nil {
		return nil, err
	}
	return resultShape(result), nil
}

// A request and the body of its reply, by a producer of its own.
func request(args arguments) (any, error) {
	made, err := rocketmq.NewProducer(producerOptions(args)...)
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	defer made.Shutdown()
	// The client sends its first heartbeat a second after its start; a reply before that finds nobody.
	deadline := time.Now().Add(args.milliseconds("timeout_ms"))
	for {
		message, err := messageFrom(args.part("message"))
		if err != nil {
			return nil, err
		}
		reply, err := made.Request(context.Background(), 1500*time.Millisecond, message)
		if err == nil {
			return string(reply.Body), nil
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
}
