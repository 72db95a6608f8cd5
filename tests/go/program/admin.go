// What the client's admin can do: topics, and the queues of a topic.
package main

import (
	"context"
	"sort"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// The client has one admin per process: it takes no instance name. It is started once and stays.
var (
	theAdmin     admin.Admin
	adminStarted sync.Mutex
)

func startAdmin(args arguments) (any, error) {
	adminStarted.Lock()
	defer adminStarted.Unlock()
	if theAdmin != nil {
		return nil, nil
	}
	made, err := admin.NewAdmin(admin.WithResolver(nameServers(args)))
	if err == nil {
		theAdmin = made
	}
	return nil, err
}

func init() {
	commands["admin_start"] = startAdmin
	commands["admin_stop"] = func(arguments) (any, error) { return nil, nil }
	commands["create_topic"] = func(args arguments) (any, error) {
		options := []admin.OptionCreate{
			admin.WithTopicCreate(args.text("topic")),
			admin.WithBrokerAddrCreate(args.text("broker_address")),
			admin.WithReadQueueNums(int(args.number("queues"))),
			admin.WithWriteQueueNums(int(args.number("queues"))),
		}
		if args.has("perm") {
			options = append(options, admin.WithPerm(int(args.number("perm"))))
		}
		return nil, theAdmin.CreateTopic(context.Background(), options...)
	}
	commands["delete_topic"] = func(args arguments) (any, error) {
		return nil, theAdmin.DeleteTopic(context.Background(),
			admin.WithTopicDelete(args.text("topic")), admin.WithBrokerAddrDelete(args.text("broker_address")))
	}
	commands["topic_list"] = func(args arguments) (any, error) {
		found, err := theAdmin.FetchAllTopicList(context.Background())
		if err != nil {
			return nil, err
		}
		sort.Strings(found.TopicList)
		return found.TopicList, nil
	}
	commands["publish_queues"] = func(args arguments) (any, error) {
		queues, err := theAdmin.FetchPublishMessageQueues(context.Background(), args.text("topic"))
		if err != nil {
			return nil, err
		}
		return queueShapes(queues), nil
	}
	commands["groups"] = func(args arguments) (any, error) {
		found, err := theAdmin.GetAllSubscriptionGroup(context.Background(), args.text("broker_address"), 5*time.Second)
		if err != nil {
			return nil, err
		}
		return found.SubscriptionGroupTable, nil
	}
}

func queueShapes(queues []*primitive.MessageQueue) []any {
	sort.Slice(queues, func(a, b int) bool { return queues[a].QueueId < queues[b].QueueId })
	shapes := make([]any, 0, len(queues))
	for _, queue := range queues {
		shapes = append(shapes, queueShape(queue))
	}
	return shapes
}
