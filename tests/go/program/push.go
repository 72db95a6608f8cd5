// Push consumers by name, which keep every delivery, in order, for "push_await"; and answerers of requests.
package main

import (
	"context"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type collector struct {
	consumer   rocketmq.PushConsumer
	failFirst  int
	orderly    bool
	pause      time.Duration
	lock       sync.Mutex
	deliveries []any
	failed     map[string]int
	arrived    chan struct{} // Closed and made anew with each delivery.
}

var collectors table[*collector]

func (c *collector) take(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	refused := false
	for _, message := range messages {
		fail := c.failed[message.MsgId] < c.failFirst
		if fail {
			c.failed[message.MsgId]++
			refused = true
		}
		shape := messageShape(message)
		shape["accepted"] = !fail
		c.deliveries = append(c.deliveries, shape)
	}
	close(c.arrived)
	c.arrived = make(chan struct{})
	switch {
	case !refused:
		return consumer.ConsumeSuccess, nil
	case c.orderly:
		if orderly, there := primitive.GetOrderlyCtx(ctx); there && c.pause > 0 {
			orderly.SuspendCurrentQueueTimeMillis = int(c.pause / time.Millisecond)
		}
		return consumer.SuspendCurrentQueueAMoment, nil
	}
	return consumer.ConsumeRetryLater, nil
}

func (c *collector) await(count int, timeout time.Duration) []any {
	deadline := time.After(timeout)
	for {
		c.lock.Lock()
		found, arrived := append([]any{}, c.deliveries...), c.arrived
		c.lock.Unlock()
		if len(found) >= count {
			return found
		}
		select {
		case <-arrived:
		case <-deadline:
			return found
		}
	}
}

func pushOptions(args arguments) []consumer.Option {
	options := []consumer.Option{
		consumer.WithGroupName(args.text("group")),
		consumer.WithInstance(instanceName(args)),
		consumer.WithNsResolver(nameServers(args)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(args.flag("orderly")),
	}
	if args.text("model") == "BROADCASTING" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if args.has("max_reconsume_times") {
		options = append(options, consumer.WithMaxReconsumeTimes(int32(args.number("max_reconsume_times"))))
	}
	if args.has("access_key") {
		options = append(options, consumer.WithCredentials(credentials(args)))
	}
	return options
}

func selectorFrom(subscription arguments) consumer.MessageSelector {
	if subscription.has("sql") {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: subscription.text("sql")}
	}
	if subscription.has("tags") {
		return consumer.MessageSelector{Type: consumer.TAG, Expression: subscription.text("tags")}
	}
	return consumer.MessageSelector{}
}

func init() {
	commands["push_start"] = func(args arguments) (any, error) {
		made, err := rocketmq.NewPushConsumer(pushOptions(args)...)
		if err != nil {
			return nil, err
		}
		kept := &collector{
			consumer: made, failFirst: int(args.number("fail_first")), orderly: args.flag("orderly"),
			pause: args.milliseconds("retry_pause_ms"), failed: map[string]int{}, arrived: make(chan struct{}),
		}
		for _, subscription := range args.parts("subscriptions") {
			if err := made.Subscribe(subscription.text("topic"), selectorFrom(subscription), kept.take); err != nil {
				return nil, err
			}
		}
		collectors.put(args, kept)
		return nil, made.Start()
	}
	commands["push_stop"] = func(args arguments) (any, error) {
		if kept, there := collectors.take(args); there {
			return nil, kept.consumer.Shutdown()
		}
		return nil, nil
	}
	commands["push_await"] = func(args arguments) (any, error) {
		kept, err := collectors.get(args)
		if err != nil {
			return nil, err
		}
		return kept.await(int(args.number("count")), args.milliseconds("timeout_ms")), nil
	}
	commands["answerer_start"] = startAnswerer
	commands["answerer_stop"] = func(args arguments) (any, error) {
		if made, there := answerers.take(args); there {
			made.producer.Shutdown()
			return nil, made.consumer.Shutdown()
		}
		return nil, nil
	}
}

type answerer struct {
	consumer rocketmq.PushConsumer
	producer rocketmq.Producer
}

var answerers table[answerer]

// Answers every message of a topic with "re: " and its body.
func startAnswerer(args arguments) (any, error) {
	var made answerer
	var err error
	made.producer, err = rocketmq.NewProducer(
		producer.WithGroupName(args.text("group")+"-replies"),
		producer.WithInstanceName(instanceName(args)),
		producer.WithNsResolver(nameServers(args)),
	)
	if err != nil {
		return nil, err
	}
	if err := made.producer.Start(); err != nil {
		return nil, err
	}
	if made.consumer, err = rocketmq.NewPushConsumer(pushOptions(args)...); err != nil {
		return nil, err
	}
	reply := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			text := []byte("re: " + string(message.Body))
			answer, err := consumer.CreateReplyMessage(message, text)
			if err != nil {
				return consumer.ConsumeRetryLater, err
			}
			answer.Body = text // Version 2.1.2 reads the body as properties and leaves it out.
			if _, err := made.producer.SendSync(context.Background(), answer); err != nil {
				return consumer.ConsumeRetryLater, err
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := made.consumer.Subscribe(args.text("topic"), consumer.MessageSelector{}, reply); err != nil {
		return nil, err
	}
	answerers.put(args, made)
	return nil, made.consumer.Start()
}
