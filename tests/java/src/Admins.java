import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The official admin tool's calls, by name. Result types moved packages between versions: hence `var`. */
final class Admins {
    private final Map<String, DefaultMQAdminExt> admins = new ConcurrentHashMap<>();

    void register(Map<String, Driver.Command> commands) {
        commands.put("admin_start", args -> {
            DefaultMQAdminExt admin = new DefaultMQAdminExt(60_000);
            Shapes.configure(admin, args);
            admin.start();
            admins.put(args.getString("name"), admin);
            return null;
        });
        commands.put("admin_stop", args -> {
            DefaultMQAdminExt admin = admins.remove(args.getString("name"));
            if (admin != null) {
                admin.shutdown();
            }
            return null;
        });
        commands.put("create_topic", args -> {
            TopicConfig topic = new TopicConfig(args.getString("topic"));
            topic.setReadQueueNums(args.getIntValue("queues"));
            topic.setWriteQueueNums(args.getIntValue("queues"));
            if (args.containsKey("perm")) {
                topic.setPerm(args.getIntValue("perm"));
            }
            Shapes.named(admins, args).createAndUpdateTopicConfig(args.getString("broker_address"), topic);
            return null;
        });
        commands.put("delete_topic", this::deleteTopic);
        commands.put("topic_list", args ->
            new TreeSet<>(Shapes.named(admins, args).fetchAllTopicList().getTopicList()));
        commands.put("cluster_info", this::clusterInfo);
        commands.put("topic_route", this::topicRoute);
        commands.put("topic_stats", this::topicStats);
        commands.put("consume_stats", this::consumeStats);
        commands.put("consumer_connection", this::consumerConnection);
        commands.put("producer_connection", args -> {
            var found = Shapes.named(admins, args)
                .examineProducerConnectionInfo(args.getString("group"), args.getString("topic"));
            List<Object> clients = new ArrayList<>();
            found.getConnectionSet().forEach(connection -> clients.add(connection.getClientId()));
            return clients;
        });
        commands.put("running_info", this::runningInfo);
        commands.put("groups_of_topic", args -> new TreeSet<>(
            Shapes.named(admins, args).queryTopicConsumeByWho(args.getString("topic")).getGroupList()));
        commands.put("reset_offset", args -> {
            var offsets = Shapes.named(admins, args).resetOffsetByTimestamp(
                args.getString("topic"), args.getString("group"), args.getLongValue("time_ms"), true);
            Map<String, Object> byQueue = new TreeMap<>();
            offsets.forEach((queue, offset) -> byQueue.put(String.valueOf(queue.getQueueId()), offset));
            return byQueue;
        });
        commands.put("consume_directly", args -> Shapes.named(admins, args).consumeMessageDirectly(
            args.getString("group"), args.getString("client"), args.getString("topic"), args.getString("message_id"))
            .getConsumeResult().name());
        commands.put("wipe_write_permission", args -> Shapes.named(admins, args)
            .wipeWritePermOfBroker(args.getString("namesrv"), args.getString("broker_name")));
        commands.put("add_write_permission", args -> Shapes.named(admins, args)
            .addWritePermOfBroker(args.getString("namesrv"), args.getString("broker_name")));
        commands.put("put_kv", args -> {
            Shapes.named(admins, args).createAndUpdateKvConfig(
                args.getString("namespace"), args.getString("key"), args.getString("value"));
            return null;
        });
        commands.put("get_kv", args -> Shapes.named(admins, args)
            .getKVConfig(args.getString("namespace"), args.getString("key")));
        commands.put("delete_kv", args -> {
            Shapes.named(admins, args).deleteKvConfig(args.getString("namespace"), args.getString("key"));
            return null;
        });
    }

    private Object consumerConnection(JSONObject args) throws Exception {
        var found = Shapes.named(admins, args).examineConsumerConnectionInfo(args.getString("group"));
        List<Object> clients = new ArrayList<>();
        for (var connection : found.getConnectionSet()) {
            clients.add(Map.of("client", connection.getClientId(), "language", connection.getLanguage().name(),
                "version", connection.getVersion()));
        }
        Map<String, Object> subscriptions = new TreeMap<>();
        found.getSubscriptionTable().forEach((topic, data) -> subscriptions.put(topic, data.getSubString()));
        return Map.of("clients", clients, "subscriptions", subscriptions, "type", found.getConsumeType().name(),
            "model", found.getMessageModel().name(), "from", found.getConsumeFromWhere().name());
    }

    private Object runningInfo(JSONObject args) throws Exception {
        var found = Shapes.named(admins, args)
            .getConsumerRunningInfo(args.getString("group"), args.getString("client"), false);
        Map<String, Object> queues = new TreeMap<>();
        found.getMqTable().forEach((queue, info) ->
            queues.put(queue.getTopic() + ":" + queue.getQueueId(), info.getCommitOffset()));
        return Map.of("queues", queues, "properties", found.getProperties());
    }

    private Object deleteTopic(JSONObject args) throws Exception {
        DefaultMQAdminExt admin = Shapes.named(admins, args);
        String topic = args.getString("topic");
        var brokers = new java.util.HashSet<String>();
        brokers.add(args.getString("broker_address"));
        admin.deleteTopicInBroker(brokers, topic);
        var namesrvs = new java.util.HashSet<String>(admin.getNameServerAddressList());
        // 4.9.7 takes (addresses, topic, cluster), 5.5.0 (addresses, cluster, topic).
        boolean is4 = org.apache.rocketmq.common.MQVersion.getVersionDesc(
            org.apache.rocketmq.common.MQVersion.CURRENT_VERSION).startsWith("V4");
        String cluster = args.getString("cluster");
        admin.deleteTopicInNameServer(namesrvs, is4 ? topic : cluster, is4 ? cluster : topic);
        return null;
    }

    private Object clusterInfo(JSONObject args) throws Exception {
        var info = Shapes.named(admins, args).examineBrokerClusterInfo();
        Map<String, Object> brokers = new TreeMap<>();
        info.getBrokerAddrTable().forEach((name, data) -> {
            Map<String, Object> shape = new LinkedHashMap<>();
            shape.put("cluster", data.getCluster());
            Map<String, String> addresses = new TreeMap<>();
            data.getBrokerAddrs().forEach((id, address) -> addresses.put(String.valueOf(id), address));
            shape.put("addresses", addresses);
            brokers.put(name, shape);
        });
        Map<String, Object> clusters = new TreeMap<>();
        info.getClusterAddrTable().forEach((name, members) -> clusters.put(name, new TreeSet<>(members)));
        return Map.of("brokers", brokers, "clusters", clusters);
    }

    private Object topicRoute(JSONObject args) throws Exception {
        var route = Shapes.named(admins, args).examineTopicRouteInfo(args.getString("topic"));
        List<Object> queues = new ArrayList<>();
        for (var data : route.getQueueDatas()) {
            Map<String, Object> shape = new LinkedHashMap<>();
            shape.put("broker", data.getBrokerName());
            shape.put("read_queues", data.getReadQueueNums());
            shape.put("write_queues", data.getWriteQueueNums());
            shape.put("perm", data.getPerm());
            queues.add(shape);
        }
        Map<String, Object> brokers = new TreeMap<>();
        for (var data : route.getBrokerDatas()) {
            Map<String, String> addresses = new TreeMap<>();
            data.getBrokerAddrs().forEach((id, address) -> addresses.put(String.valueOf(id), address));
            brokers.put(data.getBrokerName(), addresses);
        }
        return Map.of("queues", queues, "brokers", brokers);
    }

    private Object topicStats(JSONObject args) throws Exception {
        var stats = Shapes.named(admins, args).examineTopicStats(args.getString("topic"));
        List<Object> rows = new ArrayList<>();
        new TreeMap<>(stats.getOffsetTable()).forEach((queue, offsets) -> {
            Map<String, Object> shape = Shapes.queue(queue);
            shape.put("min", offsets.getMinOffset());
            shape.put("max", offsets.getMaxOffset());
            shape.put("newest_time_ms", offsets.getLastUpdateTimestamp());
            rows.add(shape);
        });
        return rows;
    }

    private Object consumeStats(JSONObject args) throws Exception {
        var stats = Shapes.named(admins, args).examineConsumeStats(args.getString("group"));
        List<Object> rows = new ArrayList<>();
        new TreeMap<>(stats.getOffsetTable()).forEach((queue, offsets) -> {
            Map<String, Object> shape = Shapes.queue(queue);
            shape.put("broker_offset", offsets.getBrokerOffset());
            shape.put("consumer_offset", offsets.getConsumerOffset());
            rows.add(shape);
        });
        return rows;
    }
}
