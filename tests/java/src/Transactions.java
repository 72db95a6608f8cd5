import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transaction producers by name. A message's "outcome" is its local transaction's, "check" what a check-back gets. */
final class Transactions {
    private final Map<String, Transactor> producers = new ConcurrentHashMap<>();

    private static final class Transactor implements TransactionListener {
        TransactionMQProducer producer;
        boolean undecided;
        final List<Object> checked = new ArrayList<>();

        @Override public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.valueOf(message.getUserProperty("outcome"));
        }

        @Override public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
            Map<String, Object> shape = new LinkedHashMap<>();
            shape.put("topic", message.getTopic());
            shape.put("body", new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8));
            shape.put("transaction_id", message.getTransactionId());
            checked.add(shape);
            return undecided ? LocalTransactionState.UNKNOW
                : LocalTransactionState.valueOf(message.getUserProperty("check"));
        }

        synchronized List<Object> checked() {
            return new ArrayList<>(checked);
        }
    }

    void register(Map<String, Driver.Command> commands) {
        commands.put("transactor_start", this::start);
        commands.put("transactor_stop", this::stop);
        commands.put("transactor_send", this::send);
        commands.put("transactor_checked", args -> Shapes.named(producers, args).checked());
    }

    private Object start(JSONObject args) throws Exception {
        Transactor made = new Transactor();
        made.undecided = args.getBooleanValue("undecided");  // Answers no check.
        String traceTopic = args.getString("trace_topic");
        made.producer =
            new TransactionMQProducer(null, args.getString("group"), null, traceTopic != null, traceTopic);
        Shapes.configure(made.producer, args);
        made.producer.setTransactionListener(made);
        made.producer.start();
        producers.put(args.getString("name"), made);
        return null;
    }

    private Object stop(JSONObject args) {
        Transactor made = producers.remove(args.getString("name"));
        if (made != null) {
            made.producer.shutdown();
        }
        return null;
    }

    private Object send(JSONObject args) throws Exception {
        List<Object> results = new ArrayList<>();
        for (Message message : Shapes.messages(args.getJSONArray("messages"))) {
            TransactionSendResult result =
                Shapes.named(producers, args).producer.sendMessageInTransaction(message, null);
            Map<String, Object> shape = new LinkedHashMap<>();
            shape.put("status", result.getSendStatus().name());
            shape.put("state", result.getLocalTransactionState().name());
            shape.put("transaction_id", result.getTransactionId());
            results.add(shape);
        }
        return results;
    }
}
