// Drives the official Go client of RocketMQ 5: one JSON command a line on stdin, one JSON answer a line on stdout.
// The commands and their arguments are those of python/program.py. End of stdin ends the process.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type arguments struct {
	ID            int64             `json:"id"`
	Command       string            `json:"command"`
	Name          string            `json:"name"`
	Endpoints     string            `json:"endpoints"`
	AccessKey     string            `json:"access_key"`
	SecretKey     string            `json:"secret_key"`
	Topics        []string          `json:"topics"`
	Topic         string            `json:"topic"`
	Group         string            `json:"group"`
	Checks        bool              `json:"checks"`
	Subscriptions map[string]string `json:"subscriptions"`
	Message       fields            `json:"message"`
	Messages      []fields          `json:"messages"`
	Outcome       string            `json:"outcome"`
	RecallHandle  string            `json:"recall_handle"`
	AwaitMs       int64             `json:"await_ms"`
	Max           int32             `json:"max"`
	InvisibleMs   int64             `json:"invisible_ms"`
	AfterMs       int64             `json:"after_ms"`
	Number        int64             `json:"number"`
	Count         int               `json:"count"`
	WaitMs        int64             `json:"wait_ms"`
	FailFirst     int               `json:"fail_first"`
	PauseMs       int64             `json:"pause_ms"`
	Threads       int32             `json:"threads"`
}

type fields struct {
	Topic               string            `json:"topic"`
	Body                []byte            `json:"body"`
	Tag                 string            `json:"tag"`
	Keys                []string          `json:"keys"`
	Group               string            `json:"group"`
	DeliveryTimestampMs int64             `json:"delivery_timestamp_ms"`
	Properties          map[string]string `json:"properties"`
}

// A list that is waited for until it is long enough.
type waited struct {
	lock    sync.Mutex
	list    []any
	arrived chan struct{} // Closed and made anew with each item.
}

func newWaited() *waited { return &waited{arrived: make(chan struct{})} }

func (w *waited) push(item any) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.list = append(w.list, item)
	close(w.arrived)
	w.arrived = make(chan struct{})
}

func (w *waited) await(args arguments) []any {
	end := time.After(time.Duration(args.WaitMs) * time.Millisecond)
	for {
		w.lock.Lock()
		found, arrived := append([]any{}, w.list...), w.arrived
		w.lock.Unlock()
		if len(found) >= args.Count {
			return found
		}
		select {
		case <-arrived:
		case <-end:
			return found
		}
	}
}

type thing struct {
	producer rmq.Producer
	simple   rmq.SimpleConsumer
	push     rmq.PushConsumer
	waited   *waited
}

var (
	lock     sync.Mutex
	things   = map[string]*thing{}
	received = map[int64]*rmq.MessageView{}
	output   sync.Mutex
)

func put(args arguments, made *thing) { lock.Lock(); defer lock.Unlock(); things[args.Name] = made }

func get(args arguments) *thing { lock.Lock(); defer lock.Unlock(); return things[args.Name] }

// Its three seconds are too short for a machine that does other work; no option says more.
func patient(client any) {
	client.(interface{ SetRequestTimeout(time.Duration) }).SetRequestTimeout(20 * time.Second)
}

func config(args arguments) *rmq.Config {
	return &rmq.Config{
		Endpoint:      args.Endpoints,
		ConsumerGroup: args.Group,
		Credentials:   &credentials.SessionCredentials{AccessKey: args.AccessKey, AccessSecret: args.SecretKey},
	}
}

func expressions(args arguments) map[string]*rmq.FilterExpression {
	found := map[string]*rmq.FilterExpression{}
	for topic, expression := range args.Subscriptions {
		if sql, is := strings.CutPrefix(expression, "sql:"); is {
			found[topic] = rmq.NewFilterExpressionWithType(sql, rmq.SQL92)
		} else {
			found[topic] = rmq.NewFilterExpression(expression)
		}
	}
	return found
}

func orNull(text *string) any {
	if text == nil || *text == "" {
		return nil
	}
	return *text
}

func milliseconds(moment *time.Time) any {
	if moment == nil || moment.UnixMilli() <= 0 {
		return nil
	}
	return moment.UnixMilli()
}

func shape(view *rmq.MessageView) map[string]any {
	lock.Lock()
	number := int64(len(received) + 1)
	received[number] = view
	lock.Unlock()
	keys := append([]string{}, view.GetKeys()...)
	sort.Strings(keys)
	return map[string]any{
		"number": number, "message_id": view.GetMessageId(), "topic": view.GetTopic(),
		"body": base64.StdEncoding.EncodeToString(view.GetBody()), "tag": orNull(view.GetTag()), "keys": keys,
		"properties": view.GetProperties(), "group": orNull(view.GetMessageGroup()),
		"attempt": view.GetDeliveryAttempt(), "born_host": orNull(view.GetBornHost()),
		"born_timestamp_ms": milliseconds(view.GetBornTimestamp()), "delivery_timestamp_ms": milliseconds(view.GetDeliveryTimestamp()),
		"at": float64(time.Now().UnixMicro()) / 1e6,
	}
}

func message(given fields) *rmq.Message {
	made := &rmq.Message{Topic: given.Topic, Body: given.Body}
	if given.Tag != "" {
		made.SetTag(given.Tag)
	}
	if len(given.Keys) > 0 {
		made.SetKeys(given.Keys...)
	}
	if given.Group != "" {
		made.SetMessageGroup(given.Group)
	}
	if given.DeliveryTimestampMs != 0 {
		made.SetDelayTimestamp(time.UnixMilli(given.DeliveryTimestampMs))
	}
	for name, value := range given.Properties {
		made.AddProperty(name, value)
	}
	return made
}

func receipt(sent []*rmq.SendReceipt) map[string]any {
	return map[string]any{
		"message_id": sent[0].MessageID, "recall_handle": orNull(&sent[0].RecallHandle), "offset": sent[0].Offset,
	}
}

func startProducer(args arguments) (any, error) {
	made := &thing{waited: newWaited()}
	options := []rmq.ProducerOption{rmq.WithTopics(args.Topics...)}
	if args.Checks {
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(view *rmq.MessageView) rmq.TransactionResolution {
				made.waited.push(view.GetMessageId())
				return map[string]rmq.TransactionResolution{"COMMIT": rmq.COMMIT, "ROLLBACK": rmq.ROLLBACK}[view.GetProperties()["check"]]
			},
		}))
	}
	var err error
	if made.producer, err = rmq.NewProducer(config(args), options...); err != nil {
		return nil, err
	}
	patient(made.producer)
	put(args, made)
	return nil, made.producer.Start()
}

func send(args arguments) (any, error) {
	sent, err := get(args).producer.Send(context.Background(), message(args.Message))
	if err != nil {
		return nil, err
	}
	return receipt(sent), nil
}

func sendMany(args arguments) (any, error) {
	ids := []string{}
	for _, one := range args.Messages {
		sent, err := get(args).producer.Send(context.Background(), message(one))
		if err != nil {
			return nil, err
		}
		ids = append(ids, sent[0].MessageID)
	}
	return ids, nil
}

func sendTransaction(args arguments) (any, error) {
	producer := get(args).producer
	transaction := producer.BeginTransaction()
	sent, err := producer.SendWithTransaction(context.Background(), message(args.Message), transaction)
	if err != nil {
		return nil, err
	}
	switch args.Outcome {
	case "COMMIT":
		err = transaction.Commit()
	case "ROLLBACK":
		err = transaction.RollBack()
	}
	return receipt(sent), err
}

func startSimple(args arguments) (any, error) {
	wait := args.AwaitMs
	if wait == 0 {
		wait = 5000
	}
	made, err := rmq.NewSimpleConsumer(config(args),
		rmq.WithSimpleAwaitDuration(time.Duration(wait)*time.Millisecond),
		rmq.WithSimpleSubscriptionExpressions(expressions(args)))
	if err != nil {
		return nil, err
	}
	patient(made)
	put(args, &thing{simple: made})
	return nil, made.Start()
}

func receive(args arguments) (any, error) {
	most := args.Max
	if most == 0 {
		most = 16
	}
	found, err := get(args).simple.Receive(context.Background(), most, time.Duration(args.InvisibleMs)*time.Millisecond)
	if status, is := rmq.AsErrRpcStatus(err); is && status.GetCode() == 40401 {
		return []any{}, nil // It tells by an error that nothing is there.
	}
	if err != nil {
		return nil, err
	}
	shapes := []any{}
	for _, view := range found {
		shapes = append(shapes, shape(view))
	}
	return shapes, nil
}

func startPush(args arguments) (any, error) {
	made := &thing{waited: newWaited()}
	failed := map[string]int{}
	var counting sync.Mutex
	listener := &rmq.FuncMessageListener{Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
		counting.Lock()
		fail := failed[view.GetMessageId()] < args.FailFirst
		if fail {
			failed[view.GetMessageId()]++
		}
		counting.Unlock()
		seen := shape(view)
		seen["accepted"] = !fail
		made.waited.push(seen)
		time.Sleep(time.Duration(args.PauseMs) * time.Millisecond)
		if fail {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}}
	var err error
	made.push, err = rmq.NewPushConsumer(config(args),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(expressions(args)),
		rmq.WithPushMessageListener(listener))
	if err != nil {
		return nil, err
	}
	patient(made.push)
	put(args, made)
	return nil, made.push.Start()
}

func stop(args arguments) (any, error) {
	made := get(args)
	switch {
	case made == nil:
		return nil, nil
	case made.producer != nil:
		return nil, made.producer.GracefulStop()
	case made.simple != nil:
		return nil, made.simple.GracefulStop()
	}
	return nil, made.push.GracefulStop()
}

var commands = map[string]func(arguments) (any, error){
	"ping":             func(arguments) (any, error) { return map[string]any{"client": "go"}, nil },
	"producer_start":   startProducer,
	"send":             send,
	"send_many":        sendMany,
	"send_transaction": sendTransaction,
	"checked":          func(args arguments) (any, error) { return get(args).waited.await(args), nil },
	"recall": func(args arguments) (any, error) {
		id, err := get(args).producer.Recall(context.Background(), args.Topic, args.RecallHandle)
		return map[string]any{"message_id": id}, err
	},
	"simple_start": startSimple,
	"receive":      receive,
	"ack": func(args arguments) (any, error) {
		lock.Lock()
		view := received[args.Number]
		lock.Unlock()
		return nil, get(args).simple.Ack(context.Background(), view)
	},
	"change_invisible": func(args arguments) (any, error) {
		lock.Lock()
		view := received[args.Number]
		lock.Unlock()
		return nil, get(args).simple.ChangeInvisibleDuration(view, time.Duration(args.InvisibleMs)*time.Millisecond)
	},
	"push_start":    startPush,
	"push_await":    func(args arguments) (any, error) { return get(args).waited.await(args), nil },
	"producer_stop": stop,
	"simple_stop":   stop,
	"push_stop":     stop,
}

func answer(args arguments) {
	reply := map[string]any{"id": args.ID}
	run, known := commands[args.Command]
	result, err := any(nil), fmt.Errorf("no command %s", args.Command)
	if known {
		result, err = run(args)
	}
	if err != nil {
		code := int32(-1)
		if status, is := rmq.AsErrRpcStatus(err); is {
			code = status.GetCode()
		}
		reply["error"] = map[string]any{"type": fmt.Sprintf("%T", err), "message": err.Error(), "code": code}
	} else {
		reply["result"] = result
	}
	line, _ := json.Marshal(reply)
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 64<<20)
	for input.Scan() {
		var args arguments
		if err := json.Unmarshal(input.Bytes(), &args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		go answer(args)
	}
}
