// Transaction producers by name. A message's "outcome" is its local transaction's, "check" what a check-back gets.
package main

import (
	"context"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnknowState,
}

type transactor struct {
	producer  rocketmq.TransactionProducer
	undecided bool // Answers no check.
	lock      sync.Mutex
	checked   []any
}

var transactors table[*transactor]

func (t *transactor) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return states[message.GetProperty("outcome")]
}

func (t *transactor) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.checked = append(t.checked, map[string]any{
		"topic": message.Topic, "body": string(message.Body), "transaction_id": message.TransactionId,
	})
	if t.undecided {
		return primitive.UnknowState
	}
	return states[message.GetProperty("check")]
}

func init() {
	commands["transactor_start"] = func(args arguments) (any, error) {
		made := &transactor{undecided: args.flag("undecided")}
		var err error
		if made.producer, err = rocketmq.NewTransactionProducer(made, producerOptions(args)...); err != nil {
			return nil, err
		}
		transactors.put(args, made)
		return nil, made.producer.Start()
	}
	commands["transactor_stop"] = func(args arguments) (any, error) {
		if made, there := transactors.take(args); there {
			return nil, made.producer.Shutdown()
		}
		return nil, nil
	}
	commands["transactor_checked"] = func(args arguments) (any, error) {
		made, err := transactors.get(args)
		if err != nil {
			return nil, err
		}
		made.lock.Lock()
		defer made.lock.Unlock()
		return append([]any{}, made.checked...), nil
	}
	commands["transactor_send"] = func(args arguments) (any, error) {
		made, err := transactors.get(args)
		if err != nil {
			return nil, err
		}
		messages, err := messagesFrom(args)
		if err != nil {
			return nil, err
		}
		var results []any
		for _, message := range messages {
			result, err := made.producer.SendMessageInTransaction(context.Background(), message)
			if err != nil {
				return nil, err
			}
			results = append(results, map[string]any{
				"status":         sendStatuses[result.Status],
				"transaction_id": message.TransactionId,
			})
		}
		return results, nil
	}
}
