import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request-reply: answerers by name, which reply "re: " and the request's body; and requests. */
final class Requests {
    private final Map<String, Answerer> answerers = new ConcurrentHashMap<>();

    private static final class Answerer {
        DefaultMQPushConsumer consumer;
        DefaultMQProducer producer;
    }

    void register(Map<String, Driver.Command> commands) {
        commands.put("answerer_start", this::start);
        commands.put("answerer_stop", this::stop);
        commands.put("request", this::request);
    }

    private Object start(JSONObject args) throws Exception {
        Answerer made = new Answerer();
        made.producer = new DefaultMQProducer(args.getString("group") + "-replies");
        Shapes.configure(made.producer, args);
        made.producer.setInstanceName(args.getString("name") + "-replies");
        made.producer.start();
        made.consumer = new DefaultMQPushConsumer(args.getString("group"));
        Shapes.configure(made.consumer, args);
        made.consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.consumer.subscribe(args.getString("topic"), "*");
        made.consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String text = "re: " + new String(message.getBody(), StandardCharsets.UTF_8);
                    made.producer.send(
                        MessageUtil.createReplyMessage(message, text.getBytes(StandardCharsets.UTF_8)), 60_000);
                } catch (Exception problem) {
                    problem.printStackTrace();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        made.consumer.start();
        answerers.put(args.getString("name"), made);
        return null;
    }

    private Object stop(JSONObject args) {
        Answerer made = answerers.remove(args.getString("name"));
        if (made != null) {
            made.consumer.shutdown();
            made.producer.shutdown();
        }
        return null;
    }

    private Object request(JSONObject args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args.getString("group"));
        Shapes.configure(producer, args);
        producer.setInstanceName("asking-" + System.nanoTime());
        producer.start();
        try {
            Message reply = producer.request(
                Shapes.message(args.getJSONObject("message")), args.getLongValue("timeout_ms"));
            return new String(reply.getBody(), StandardCharsets.UTF_8);
        } finally {
            new Thread(producer::shutdown).start();  // It takes 3 s now and then.
        }
    }
}
