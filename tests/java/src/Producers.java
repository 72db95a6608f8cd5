import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/** Producers by name, and every way of sending. */
final class Producers {
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();

    void register(Map<String, Driver.Command> commands) {
        commands.put("producer_start", this::start);
        commands.put("producer_stop", this::stop);
        commands.put("publish_queues", args -> Shapes.queues(
            Shapes.named(producers, args).fetchPublishMessageQueues(args.getString("topic"))));
        commands.put("send", this::send);
        commands.put("send_async", this::sendAsync);
        commands.put("send_oneway", this::sendOneway);
        commands.put("send_batch", this::sendBatch);
        commands.put("send_ordered", this::sendOrdered);
        commands.put("send_timed", this::sendTimed);
        commands.put("recall", this::recall);
    }

    private Object start(JSONObject args) throws Exception {
        String traceTopic = args.getString("trace_topic");
        AclClientRPCHook signer = args.containsKey("access_key")
            ? new AclClientRPCHook(new SessionCredentials(args.getString("access_key"), args.getString("secret_key")))
            : null;
        DefaultMQProducer producer =
            new DefaultMQProducer(args.getString("group"), signer, traceTopic != null, traceTopic);
        Shapes.configure(producer, args);
        if (args.containsKey("compression")) {
            compress(producer, args.getString("compression"));
        }
        producer.setSendMsgTimeout(args.containsKey("send_timeout_ms") ? args.getIntValue("send_timeout_ms") : 60_000);
        if (args.containsKey("compress_over_bytes")) {
            producer.setCompressMsgBodyOverHowmuch(args.getIntValue("compress_over_bytes"));
        }
        if (args.containsKey("new_topic_queues")) {
            producer.setDefaultTopicQueueNums(args.getIntValue("new_topic_queues"));
        }
        if (args.containsKey("max_message_bytes")) {
            producer.setMaxMessageSize(args.getIntValue("max_message_bytes"));
        }
        producer.start();
        producers.put(args.getString("name"), producer);
        return null;
    }

    /** ZLIB, LZ4 or ZSTD; clients before 5.0 know of ZLIB alone. */
    private static void compress(DefaultMQProducer producer, String kind) throws Exception {
        Class<?> kinds = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
        Object wanted = kinds.getMethod("valueOf", String.class).invoke(null, kind);
        DefaultMQProducer.class.getMethod("setCompressType", kinds).invoke(producer, wanted);
    }

    private Object stop(JSONObject args) {
        DefaultMQProducer producer = producers.remove(args.getString("name"));
        if (producer != null) {
            producer.shutdown();
        }
        return null;
    }

    /** Sends the messages one after another; to "queue" if given. Returns one result each. */
    private Object send(JSONObject args) throws Exception {
        DefaultMQProducer producer = Shapes.named(producers, args);
        List<Object> results = new ArrayList<>();
        for (Message message : Shapes.messages(args.getJSONArray("messages"))) {
            SendResult result = args.containsKey("queue")
                ? producer.send(message, Shapes.queue(args.getJSONObject("queue")))
                : producer.send(message);
            results.add(Shapes.result(result));
        }
        return results;
    }

    /** Sends to "queue" with the broker's own properties in "times" (TIMER_...). Returns a recall handle or null each. */
    private Object sendTimed(JSONObject args) throws Exception {
        DefaultMQProducer producer = Shapes.named(producers, args);
        List<Object> handles = new ArrayList<>();
        for (int index = 0; index < args.getJSONArray("messages").size(); index++) {
            JSONObject from = args.getJSONArray("messages").getJSONObject(index);
            Message message = Shapes.message(from);
            for (String name : from.getJSONObject("times").keySet()) {
                MessageAccessor.putProperty(message, name, from.getJSONObject("times").getString(name));
            }
            SendResult result = producer.send(message, Shapes.queue(args.getJSONObject("queue")));
            handles.add(recallHandle(result));
        }
        return handles;
    }

    /** Clients before 5.4 know of none. */
    private static Object recallHandle(SendResult result) throws Exception {
        try {
            return SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (NoSuchMethodException old) {
            return null;
        }
    }

    /** Takes back a timer message; clients before 5.4 have no such method. Returns its id. */
    private Object recall(JSONObject args) throws Exception {
        DefaultMQProducer producer = Shapes.named(producers, args);
        return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(producer, args.getString("topic"), args.getString("handle"));
    }

    private Object sendAsync(JSONObject args) throws Exception {
        DefaultMQProducer producer = Shapes.named(producers, args);
        List<CompletableFuture<SendResult>> pending = new ArrayList<>();
        for (Message message : Shapes.messages(args.getJSONArray("messages"))) {
            CompletableFuture<SendResult> done = new CompletableFuture<>();
            pending.add(done);
            SendCallback callback = new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    done.complete(result);
                }

                @Override public void onException(Throwable problem) {
                    done.completeExceptionally(problem);
                }
            };
            if (args.containsKey("queue")) {
                producer.send(message, Shapes.queue(args.getJSONObject("queue")), callback);
            } else {
                producer.send(message, callback);
            }
        }
        List<Object> results = new ArrayList<>();
        for (CompletableFuture<SendResult> done : pending) {
            results.add(Shapes.result(done.get(120, TimeUnit.SECONDS)));
        }
        return results;
    }

    private Object sendOneway(JSONObject args) throws Exception {
        DefaultMQProducer producer = Shapes.named(producers, args);
        for (Message message : Shapes.messages(args.getJSONArray("messages"))) {
            if (args.containsKey("queue")) {
                producer.sendOneway(message, Shapes.queue(args.getJSONObject("queue")));
            } else {
                producer.sendOneway(message);
            }
        }
        return null;
    }

    private Object sendBatch(JSONObject args) throws Exception {
        DefaultMQProducer producer = Shapes.named(producers, args);
        List<Message> messages = Shapes.messages(args.getJSONArray("messages"));
        SendResult result = args.containsKey("queue")
            ? producer.send(messages, Shapes.queue(args.getJSONObject("queue")))
            : producer.send(messages);
        return Shapes.result(result);
    }

    /** Chooses the queue by the sharding key "shard" of each message: hash modulo number of queues. */
    private Object sendOrdered(JSONObject args) throws Exception {
        DefaultMQProducer producer = Shapes.named(producers, args);
        List<Object> results = new ArrayList<>();
        for (int index = 0; index < args.getJSONArray("messages").size(); index++) {
            JSONObject from = args.getJSONArray("messages").getJSONObject(index);
            results.add(Shapes.result(producer.send(Shapes.message(from), Producers::byShard, from.getString("shard"))));
        }
        return results;
    }

    private static MessageQueue byShard(List<MessageQueue> queues, Message message, Object shard) {
        List<MessageQueue> sorted = new ArrayList<>(queues);
        Collections.sort(sorted);
        return sorted.get(Math.floorMod(shard.hashCode(), sorted.size()));
    }
}
