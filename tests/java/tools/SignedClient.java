import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends one message for each pair of key and secret, then reads what is there with the first pair.
 *
 * Arguments: NameServer, topic, group, messages to read, key:secret… (":" for none). A line for each outcome.
 */
public class SignedClient {
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logUseSlf4j", "false");
        for (int i = 4; i < args.length; i++) {
            DefaultMQProducer producer = new DefaultMQProducer(null, "signed-" + i, hook(args[i]));
            producer.setNamesrvAddr(args[0]);
            producer.setInstanceName("signed-" + i);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
            try {
                byte[] body = ("from " + i).getBytes(StandardCharsets.UTF_8);
                System.out.println("sent " + producer.send(new Message(args[1], body)).getSendStatus());
            } catch (Exception e) {
                Throwable cause = e;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                System.out.println("refused " + String.valueOf(cause.getMessage()).replace('\n', ' '));
            }
            producer.shutdown();
        }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[2], hook(args[4]));
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(new AllocateMessageQueueAveragely());
        consumer.subscribe(args[1], "*");
        consumer.start();
        int left = Integer.parseInt(args[3]);
        for (long end = System.currentTimeMillis() + 60_000; left > 0 && System.currentTimeMillis() < end; ) {
            List<MessageExt> messages = consumer.poll(1000);
            for (MessageExt message : messages) {
                System.out.println("got " + new String(message.getBody(), StandardCharsets.UTF_8));
                left--;
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        System.exit(0);
    }

    private static AclClientRPCHook hook(String pair) {
        String[] parts = pair.split(":", 2);
        return parts[0].isEmpty() ? null : new AclClientRPCHook(new SessionCredentials(parts[0], parts[1]));
    }
}
