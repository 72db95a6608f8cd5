import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Pull consumers by name: DefaultMQPullConsumer (each pull and offset call by hand) and DefaultLitePullConsumer. */
@SuppressWarnings("deprecation")
final class PullConsumers {
    private final Map<String, DefaultMQPullConsumer> pulls = new ConcurrentHashMap<>();
    private final Map<String, DefaultLitePullConsumer> lites = new ConcurrentHashMap<>();

    void register(Map<String, Driver.Command> commands) {
        commands.put("pull_start", this::start);
        commands.put("pull_stop", args -> {
            DefaultMQPullConsumer consumer = pulls.remove(args.getString("name"));
            if (consumer != null) {
                consumer.shutdown();
            }
            return null;
        });
        commands.put("subscribe_queues", args -> Shapes.queues(
            Shapes.named(pulls, args).fetchSubscribeMessageQueues(args.getString("topic"))));
        commands.put("pull", this::pull);
        commands.put("read_queue", this::readQueue);
        commands.put("offsets", args -> {
            DefaultMQPullConsumer consumer = Shapes.named(pulls, args);
            MessageQueue queue = Shapes.queue(args.getJSONObject("queue"));
            Map<String, Object> shape = new LinkedHashMap<>();
            shape.put("min", consumer.minOffset(queue));
            shape.put("max", consumer.maxOffset(queue));
            shape.put("oldest_time_ms", consumer.earliestMsgStoreTime(queue));
            return shape;
        });
        commands.put("search_offset", args -> Shapes.named(pulls, args).searchOffset(
            Shapes.queue(args.getJSONObject("queue")), args.getLongValue("time_ms")));
        commands.put("committed_offset", args -> Shapes.named(pulls, args).fetchConsumeOffset(
            Shapes.queue(args.getJSONObject("queue")), true));
        commands.put("commit_offset", args -> {
            DefaultMQPullConsumer consumer = Shapes.named(pulls, args);
            MessageQueue queue = Shapes.queue(args.getJSONObject("queue"));
            consumer.updateConsumeOffset(queue, args.getLongValue("offset"));
            consumer.getOffsetStore().persist(queue);
            return null;
        });
        commands.put("query_message", args -> {
            QueryResult found = Shapes.named(pulls, args).queryMessage(args.getString("topic"), args.getString("key"),
                args.getIntValue("count_max"), 0, System.currentTimeMillis() + 1000);
            return Shapes.messages(found.getMessageList());
        });
        commands.put("view_message", args -> Shapes.message(
            Shapes.named(pulls, args).viewMessage(args.getString("topic"), args.getString("message_id"))));
        commands.put("lite_start", this::startLite);
        commands.put("lite_stop", args -> {
            DefaultLitePullConsumer consumer = lites.remove(args.getString("name"));
            if (consumer != null) {
                consumer.shutdown();
            }
            return null;
        });
        commands.put("lite_poll", this::pollLite);
        commands.put("lite_seek", args -> {
            Shapes.named(lites, args).seek(Shapes.queue(args.getJSONObject("queue")), args.getLongValue("offset"));
            return null;
        });
        commands.put("lite_commit", args -> {
            Shapes.named(lites, args).commitSync();
            return null;
        });
    }

    private Object start(JSONObject args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args.getString("group"));
        Shapes.configure(consumer, args);
        consumer.setConsumerPullTimeoutMillis(60_000);
        consumer.start();
        pulls.put(args.getString("name"), consumer);
        return null;
    }

    private Object pull(JSONObject args) throws Exception {
        DefaultMQPullConsumer consumer = Shapes.named(pulls, args);
        MessageQueue queue = Shapes.queue(args.getJSONObject("queue"));
        String tags = args.containsKey("tags") ? args.getString("tags") : "*";
        int countMax = args.containsKey("count_max") ? args.getIntValue("count_max") : 32;
        PullResult result = args.getBooleanValue("block")
            ? consumer.pullBlockIfNotFound(queue, tags, args.getLongValue("offset"), countMax)
            : consumer.pull(queue, tags, args.getLongValue("offset"), countMax);
        Map<String, Object> shape = new LinkedHashMap<>();
        shape.put("status", result.getPullStatus().name());
        shape.put("next", result.getNextBeginOffset());
        shape.put("min", result.getMinOffset());
        shape.put("max", result.getMaxOffset());
        List<MessageExt> found = result.getMsgFoundList();
        shape.put("messages", found == null ? new ArrayList<>() : Shapes.messages(found));
        return shape;
    }

    /** Every message of a queue from its oldest to its newest, by as many pulls as it takes. */
    private Object readQueue(JSONObject args) throws Exception {
        DefaultMQPullConsumer consumer = Shapes.named(pulls, args);
        MessageQueue queue = Shapes.queue(args.getJSONObject("queue"));
        List<Object> messages = new ArrayList<>();
        long offset = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        while (offset < end) {
            PullResult result = consumer.pull(queue, "*", offset, 1024);
            if (result.getMsgFoundList() != null) {
                messages.addAll(Shapes.messages(result.getMsgFoundList()));
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException("no way on from " + offset + " of " + queue + ": " + result);
            }
            offset = result.getNextBeginOffset();
        }
        return messages;
    }

    private Object startLite(JSONObject args) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args.getString("group"));
        Shapes.configure(consumer, args);
        consumer.setAutoCommit(args.getBooleanValue("auto_commit"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        String tags = args.containsKey("tags") ? args.getString("tags") : "*";
        JSONArray queues = args.getJSONArray("assign");
        if (queues == null) {
            consumer.subscribe(args.getString("topic"), tags);
        }
        consumer.start();
        if (queues != null) {
            List<MessageQueue> assigned = new ArrayList<>();
            for (int index = 0; index < queues.size(); index++) {
                assigned.add(Shapes.queue(queues.getJSONObject(index)));
            }
            consumer.assign(assigned);
        }
        lites.put(args.getString("name"), consumer);
        return null;
    }

    /** Polls until "count" messages came or the time is up. */
    private Object pollLite(JSONObject args) {
        DefaultLitePullConsumer consumer = Shapes.named(lites, args);
        List<Object> messages = new ArrayList<>();
        long deadline = System.nanoTime() + args.getLongValue("timeout_ms") * 1_000_000;
        while (messages.size() < args.getIntValue("count") && System.nanoTime() < deadline) {
            messages.addAll(Shapes.messages(consumer.poll(200)));
        }
        return messages;
    }
}
