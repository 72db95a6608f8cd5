// Pull consumers by name: single pulls from an offset, and polls of what the group's share brings.
package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// No queue has so many messages: a pull there is answered at once, with the queue's bounds.
const beyondEveryQueue = 1 << 40

var pullStatuses = map[primitive.PullStatus]string{
	primitive.PullFound:         "FOUND",
	primitive.PullNoNewMsg:      "NO_NEW_MSG",
	primitive.PullNoMsgMatched:  "NO_MATCHED_MSG",
	primitive.PullOffsetIllegal: "OFFSET_ILLEGAL",
}

var pullers table[rocketmq.PullConsumer]

// A started pull consumer of one topic; the client wants the topic before it starts.
func newPuller(args arguments) (rocketmq.PullConsumer, error) {
	made, err := rocketmq.NewPullConsumer(
		consumer.WithGroupName(args.text("group")),
		consumer.WithInstance(instanceName(args)),
		consumer.WithNsResolver(nameServers(args)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	if err := made.Subscribe(args.text("topic"), selectorFrom(args)); err != nil {
		return nil, err
	}
	return made, made.Start()
}

func init() {
	for _, kind := range []string{"pull", "lite"} {
		commands[kind+"_start"] = func(args arguments) (any, error) {
			made, err := newPuller(args)
			if err == nil {
				pullers.put(args, made)
			}
			return nil, err
		}
		commands[kind+"_stop"] = func(args arguments) (any, error) {
			if made, there := pullers.take(args); there {
				return nil, made.Shutdown()
			}
			return nil, nil
		}
	}
	commands["pull"] = func(args arguments) (any, error) {
		made, err := pullers.get(args)
		if err != nil {
			return nil, err
		}
		count := int(args.number("count_max"))
		if count == 0 {
			count = 32
		}
		result, err := made.PullFrom(context.Background(), queueFrom(args.part("queue")), args.number("offset"), count)
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"status": pullStatuses[result.Status], "next": result.NextBeginOffset,
			"min": result.MinOffset, "max": result.MaxOffset, "messages": messageShapes(result.GetMessageExts()),
		}, nil
	}
	commands["read_queue"] = readQueue
	commands["lite_poll"] = poll
}

// Every message of a queue from its oldest to its newest, by as many pulls as it takes.
func readQueue(args arguments) (any, error) {
	made, err := pullers.get(args)
	if err != nil {
		return nil, err
	}
	queue := queueFrom(args.part("queue"))
	bounds, err := made.PullFrom(context.Background(), queue, beyondEveryQueue, 1)
	if err != nil {
		return nil, err
	}
	messages := []any{}
	for offset := bounds.MinOffset; offset < bounds.MaxOffset; {
		result, err := made.PullFrom(context.Background(), queue, offset, 32)
		if err != nil {
			return nil, err
		}
		messages = append(messages, messageShapes(result.GetMessageExts())...)
		if result.NextBeginOffset <= offset {
			return nil, fmt.Errorf("no way on from %d of %v", offset, queue)
		}
		offset = result.NextBeginOffset
	}
	return messages, nil
}

// Polls until "count" messages came or the time is up; acknowledges each.
func poll(args arguments) (any, error) {
	made, err := pullers.get(args)
	if err != nil {
		return nil, err
	}
	messages := []any{}
	deadline := time.Now().Add(args.milliseconds("timeout_ms"))
	for len(messages) < int(args.number("count")) && time.Now().Before(deadline) {
		found, err := made.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		messages = append(messages, messageShapes(found.GetMsgList())...)
		made.ACK(context.Background(), found, consumer.ConsumeSuccess)
	}
	return messages, nil
}
