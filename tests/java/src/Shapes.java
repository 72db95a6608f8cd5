import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** JSON shapes of messages, queues and results, both ways. Bodies are base64; nothing of a message is left out. */
final class Shapes {
    private Shapes() { }

    static Message message(JSONObject from) {
        Message message = new Message(from.getString("topic"), Base64.getDecoder().decode(from.getString("body")));
        if (from.containsKey("tag")) {
            message.setTags(from.getString("tag"));
        }
        if (from.containsKey("keys")) {
            message.setKeys(from.getString("keys"));
        }
        if (from.containsKey("flag")) {
            message.setFlag(from.getIntValue("flag"));
        }
        if (from.containsKey("delay_level")) {
            message.setDelayTimeLevel(from.getIntValue("delay_level"));
        }
        JSONObject properties = from.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
        }
        return message;
    }

    static List<Message> messages(JSONArray from) {
        List<Message> messages = new ArrayList<>();
        for (int index = 0; index < from.size(); index++) {
            messages.add(message(from.getJSONObject(index)));
        }
        return messages;
    }

    static Map<String, Object> message(MessageExt message) {
        Map<String, Object> shape = new LinkedHashMap<>();
        shape.put("topic", message.getTopic());
        shape.put("broker", message.getBrokerName());
        shape.put("queue_id", message.getQueueId());
        shape.put("queue_offset", message.getQueueOffset());
        shape.put("log_position", message.getCommitLogOffset());
        shape.put("stored_bytes", message.getStoreSize());
        shape.put("message_id", message.getMsgId());
        shape.put("offset_message_id",
            message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        shape.put("tag", message.getTags());
        shape.put("keys", message.getKeys());
        shape.put("properties", new LinkedHashMap<>(message.getProperties()));
        shape.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        shape.put("body_crc", message.getBodyCRC());
        shape.put("flag", message.getFlag());
        shape.put("sys_flag", message.getSysFlag());
        shape.put("born_time_ms", message.getBornTimestamp());
        shape.put("store_time_ms", message.getStoreTimestamp());
        shape.put("born_host", address(message.getBornHost()));
        shape.put("store_host", address(message.getStoreHost()));
        shape.put("reconsume_times", message.getReconsumeTimes());
        shape.put("prepared_position", message.getPreparedTransactionOffset());
        return shape;
    }

    static List<Object> messages(List<MessageExt> messages) {
        List<Object> shapes = new ArrayList<>();
        for (MessageExt message : messages) {
            shapes.add(message(message));
        }
        return shapes;
    }

    static Map<String, Object> result(SendResult result) {
        Map<String, Object> shape = new LinkedHashMap<>();
        shape.put("status", result.getSendStatus().name());
        shape.put("message_id", result.getMsgId());
        shape.put("offset_message_id", result.getOffsetMsgId());
        shape.put("queue", queue(result.getMessageQueue()));
        shape.put("queue_offset", result.getQueueOffset());
        shape.put("transaction_id", result.getTransactionId());
        shape.put("region", result.getRegionId());
        return shape;
    }

    static MessageQueue queue(JSONObject from) {
        return new MessageQueue(from.getString("topic"), from.getString("broker"), from.getIntValue("queue_id"));
    }

    static Map<String, Object> queue(MessageQueue queue) {
        Map<String, Object> shape = new LinkedHashMap<>();
        shape.put("topic", queue.getTopic());
        shape.put("broker", queue.getBrokerName());
        shape.put("queue_id", queue.getQueueId());
        return shape;
    }

    static List<Object> queues(Iterable<MessageQueue> queues) {
        List<MessageQueue> sorted = new ArrayList<>();
        queues.forEach(sorted::add);
        sorted.sort(null);
        List<Object> shapes = new ArrayList<>();
        for (MessageQueue queue : sorted) {
            shapes.add(queue(queue));
        }
        return shapes;
    }

    private static String address(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host.getAddress().getHostAddress() + ":" + host.getPort();
    }

    /** What every client takes. Without "instance" its name is made unique, so that clients of one process stay apart. */
    static void configure(ClientConfig client, JSONObject args) {
        client.setNamesrvAddr(args.getString("namesrv"));
        client.setInstanceName(args.containsKey("instance")
            ? args.getString("instance") : args.getString("name") + "-" + System.nanoTime());
        if (args.containsKey("client_ip")) {
            client.setClientIP(args.getString("client_ip"));
        }
        if (args.containsKey("vip_channel")) {
            client.setVipChannelEnabled(args.getBooleanValue("vip_channel"));
        }
        if (args.containsKey("use_tls")) {
            client.setUseTLS(args.getBooleanValue("use_tls"));
        }
        if (args.containsKey("namespace")) {
            client.setNamespace(args.getString("namespace"));
        }
        if (args.containsKey("poll_namesrv_ms")) {
            client.setPollNameServerInterval(args.getIntValue("poll_namesrv_ms"));
        }
        // Machines are busy: by default a request of the client's own has 3 s.
        client.setMqClientApiTimeout(60_000);
        // The 5.5.0 client's first rebalance and its first timed heartbeat both fall 1 s after the start. When they
        // collide the broker learns of the new subscription version only with the next heartbeat, and answers every
        // pull until then with "subscription not latest": 30 s by default, with any broker.
        client.setHeartbeatBrokerInterval(args.containsKey("heartbeat_ms") ? args.getIntValue("heartbeat_ms") : 2000);
        if (args.containsKey("persist_offsets_ms")) {
            client.setPersistConsumerOffsetInterval(args.getIntValue("persist_offsets_ms"));
        }
    }

    static <T> T named(Map<String, T> things, JSONObject args) {
        T thing = things.get(args.getString("name"));
        if (thing == null) {
            throw new NoSuchElementException("nothing started as " + args.getString("name"));
        }
        return thing;
    }
}
