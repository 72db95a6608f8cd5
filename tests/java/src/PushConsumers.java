import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers by name. Each keeps every delivery, in order, for "push_await" to ask about. */
final class PushConsumers {
    private final Map<String, Collector> consumers = new ConcurrentHashMap<>();

    /** One consumer and what it was given. Fails the first deliveries of every message when asked to. */
    private static final class Collector {
        final DefaultMQPushConsumer consumer;
        final int failFirst;
        final List<Object> deliveries = new ArrayList<>();
        final Map<String, Integer> failed = new HashMap<>();

        Collector(DefaultMQPushConsumer consumer, int failFirst) {
            this.consumer = consumer;
            this.failFirst = failFirst;
        }

        synchronized boolean accept(List<MessageExt> messages) {
            boolean ok = true;
            for (MessageExt message : messages) {
                String id = message.getMsgId();
                boolean fail = failed.getOrDefault(id, 0) < failFirst;
                if (fail) {
                    failed.merge(id, 1, Integer::sum);
                    ok = false;
                }
                Map<String, Object> delivery = Shapes.message(message);
                delivery.put("accepted", !fail);
                delivery.put("taken_time_ms", System.currentTimeMillis());
                deliveries.add(delivery);
            }
            notifyAll();
            return ok;
        }

        synchronized List<Object> await(int count, long timeoutMs) throws InterruptedException {
            long deadline = System.nanoTime() + timeoutMs * 1_000_000;
            while (deliveries.size() < count) {
                long leftMs = (deadline - System.nanoTime()) / 1_000_000;
                if (leftMs <= 0) {
                    break;
                }
                wait(leftMs);
            }
            return new ArrayList<>(deliveries);
        }
    }

    void register(Map<String, Driver.Command> commands) {
        commands.put("push_start", this::start);
        commands.put("push_stop", this::stop);
        commands.put("push_await", args -> Shapes.named(consumers, args)
            .await(args.getIntValue("count"), args.getLongValue("timeout_ms")));
        commands.put("push_queues", this::queues);
        commands.put("push_popped_queues", this::poppedQueues);
    }

    private Object start(JSONObject args) throws Exception {
        String traceTopic = args.getString("trace_topic");
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(args.getString("group"), traceTopic != null, traceTopic);
        Shapes.configure(consumer, args);
        if ("BROADCASTING".equals(args.getString("model"))) {
            // The enum's package differs between the client versions.
            var model = consumer.getMessageModel();
            consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), "BROADCASTING"));
        }
        String from = args.getString("from");
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(from == null ? "CONSUME_FROM_FIRST_OFFSET" : from));
        if (args.containsKey("from_time")) {
            consumer.setConsumeTimestamp(args.getString("from_time"));
        }
        if (args.containsKey("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(args.getIntValue("max_reconsume_times"));
        }
        if (args.containsKey("batch_count_max")) {
            consumer.setConsumeMessageBatchMaxSize(args.getIntValue("batch_count_max"));
        }
        if (args.containsKey("retry_pause_ms")) {
            consumer.setSuspendCurrentQueueTimeMillis(args.getLongValue("retry_pause_ms"));
        }
        if (args.containsKey("strategy")) {
            consumer.setAllocateMessageQueueStrategy("consistent_hash".equals(args.getString("strategy"))
                ? new AllocateMessageQueueConsistentHash() : new AllocateMessageQueueAveragelyByCircle());
        }
        if (args.getBooleanValue("pop")) {
            // Older clients have no such methods.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            DefaultMQPushConsumer.class.getMethod("setPopInvisibleTime", long.class).invoke(consumer, 5_000L);
        }
        // A message counts as consumed only after its listener has returned: shutdown waits for that.
        consumer.setAwaitTerminationMillisWhenShutdown(120_000);
        JSONArray subscriptions = args.getJSONArray("subscriptions");
        for (int index = 0; index < subscriptions.size(); index++) {
            JSONObject subscription = subscriptions.getJSONObject(index);
            if (subscription.containsKey("sql")) {
                consumer.subscribe(subscription.getString("topic"), MessageSelector.bySql(subscription.getString("sql")));
            } else {
                String tags = subscription.getString("tags");
                consumer.subscribe(subscription.getString("topic"), tags == null ? "*" : tags);
            }
        }
        Collector collector = new Collector(consumer, args.getIntValue("fail_first"));
        if (args.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                collector.accept(messages)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                collector.accept(messages)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        consumers.put(args.getString("name"), collector);
        return null;
    }

    private Object stop(JSONObject args) {
        Collector collector = consumers.remove(args.getString("name"));
        if (collector != null) {
            collector.consumer.shutdown();
        }
        return null;
    }

    /** The queues this consumer pops now, by the last assignment of a broker; -1: all of one. */
    private Object poppedQueues(JSONObject args) throws Exception {
        Object rebalance = Shapes.named(consumers, args).consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
        Map<?, ?> table = (Map<?, ?>) rebalance.getClass().getMethod("getPopProcessQueueTable").invoke(rebalance);
        List<org.apache.rocketmq.common.message.MessageQueue> queues = new ArrayList<>();
        table.keySet().forEach(queue -> queues.add((org.apache.rocketmq.common.message.MessageQueue) queue));
        return Shapes.queues(queues);
    }

    /** The queues this consumer holds now, by the last rebalance. */
    private Object queues(JSONObject args) {
        return Shapes.queues(Shapes.named(consumers, args).consumer.getDefaultMQPushConsumerImpl()
            .getRebalanceImpl().getProcessQueueTable().keySet());
    }
}
