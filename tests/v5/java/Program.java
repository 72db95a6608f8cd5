import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.com.google.gson.Gson;
import org.apache.rocketmq.shaded.com.google.gson.GsonBuilder;
import org.apache.rocketmq.shaded.com.google.gson.JsonElement;
import org.apache.rocketmq.shaded.com.google.gson.JsonObject;

/**
 * Drives the official Java client of RocketMQ 5: one JSON command a line on stdin, one JSON answer a line on stdout.
 * The commands and their arguments are those of python/program.py. End of stdin ends the process.
 */
public final class Program {
    interface Command {
        Object run(JsonObject args) throws Exception;
    }

    static final class Checker {
        final List<String> checked = new ArrayList<>();

        TransactionResolution check(MessageView view) {
            synchronized (checked) {
                checked.add(view.getMessageId().toString());
                checked.notifyAll();
            }
            return TransactionResolution.valueOf(view.getProperties().get("check"));
        }
    }

    static final class Collector {
        final int failFirst;
        final long pauseMs;
        final List<Object> deliveries = new ArrayList<>();
        final Map<String, Integer> failed = new HashMap<>();

        Collector(JsonObject args) {
            failFirst = (int) number(args, "fail_first", 0);
            pauseMs = number(args, "pause_ms", 0);
        }

        ConsumeResult consume(MessageView view) {
            boolean fail;
            synchronized (deliveries) {
                String id = view.getMessageId().toString();
                int fails = failed.getOrDefault(id, 0);
                fail = fails < failFirst;
                failed.put(id, fails + (fail ? 1 : 0));
                Map<String, Object> shape = shape(view);
                shape.put("accepted", !fail);
                deliveries.add(shape);
                deliveries.notifyAll();
            }
            try {
                Thread.sleep(pauseMs);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            return fail ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        }
    }

    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    static final Map<String, Object> THINGS = new ConcurrentHashMap<>();
    static final Map<String, Object> BESIDE = new ConcurrentHashMap<>();
    static final Map<Long, MessageView> RECEIVED = new ConcurrentHashMap<>();
    static final AtomicLong NUMBERS = new AtomicLong();
    static final Map<String, Command> COMMANDS = new HashMap<>();

    static String text(JsonObject args, String name, String otherwise) {
        return args.has(name) ? args.get(name).getAsString() : otherwise;
    }

    static long number(JsonObject args, String name, long otherwise) {
        return args.has(name) ? args.get(name).getAsLong() : otherwise;
    }

    static ClientConfiguration configuration(JsonObject args) {
        ClientConfigurationBuilder made = ClientConfiguration.newBuilder()
            .setEndpoints(text(args, "endpoints", ""))
            .enableSsl(args.has("tls") && args.get("tls").getAsBoolean())
            .setRequestTimeout(Duration.ofMillis(number(args, "timeout_ms", 20_000)));
        if (args.has("access_key")) {
            made.setCredentialProvider(
                new StaticSessionCredentialsProvider(text(args, "access_key", ""), text(args, "secret_key", "")));
        }
        return made.build();
    }

    static Map<String, FilterExpression> subscriptions(JsonObject args) {
        Map<String, FilterExpression> found = new HashMap<>();
        for (Map.Entry<String, JsonElement> entry : args.getAsJsonObject("subscriptions").entrySet()) {
            String expression = entry.getValue().getAsString();
            found.put(entry.getKey(), expression.startsWith("sql:")
                ? new FilterExpression(expression.substring(4), FilterExpressionType.SQL92)
                : new FilterExpression(expression, FilterExpressionType.TAG));
        }
        return found;
    }

    static Map<String, Object> shape(MessageView view) {
        long number = NUMBERS.incrementAndGet();
        RECEIVED.put(number, view);
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        Map<String, Object> shape = new LinkedHashMap<>();
        shape.put("number", number);
        shape.put("message_id", view.getMessageId().toString());
        shape.put("topic", view.getTopic());
        shape.put("body", Base64.getEncoder().encodeToString(bytes));
        shape.put("tag", view.getTag().orElse(null));
        shape.put("keys", new ArrayList<>(new TreeSet<>(view.getKeys())));
        shape.put("properties", view.getProperties());
        shape.put("group", view.getMessageGroup().orElse(null));
        shape.put("lite_topic", view.getLiteTopic().orElse(null));
        shape.put("priority", view.getPriority().orElse(null));
        shape.put("attempt", view.getDeliveryAttempt());
        shape.put("born_host", view.getBornHost());
        shape.put("born_timestamp_ms", view.getBornTimestamp());
        shape.put("delivery_timestamp_ms", view.getDeliveryTimestamp().orElse(null));
        shape.put("at", System.nanoTime() / 1e9);
        return shape;
    }

    static Message message(JsonObject fields) {
        MessageBuilder made = PROVIDER.newMessageBuilder()
            .setTopic(text(fields, "topic", ""))
            .setBody(Base64.getDecoder().decode(text(fields, "body", "")));
        if (fields.has("tag")) {
            made.setTag(text(fields, "tag", ""));
        }
        if (fields.has("keys")) {
            made.setKeys(GSON.fromJson(fields.get("keys"), String[].class));
        }
        if (fields.has("group")) {
            made.setMessageGroup(text(fields, "group", ""));
        }
        if (fields.has("lite_topic")) {
            made.setLiteTopic(text(fields, "lite_topic", ""));
        }
        if (fields.has("priority")) {
            made.setPriority((int) number(fields, "priority", 0));
        }
        if (fields.has("delivery_timestamp_ms")) {
            made.setDeliveryTimestamp(number(fields, "delivery_timestamp_ms", 0));
        }
        if (fields.has("properties")) {
            fields.getAsJsonObject("properties").entrySet()
                .forEach(entry -> made.addProperty(entry.getKey(), entry.getValue().getAsString()));
        }
        return made.build();
    }

    static Map<String, Object> receipt(SendReceipt sent) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("message_id", sent.getMessageId().toString());
        String handle = sent.getRecallHandle();
        found.put("recall_handle", handle == null || handle.isEmpty() ? null : handle);
        return found;
    }

    @SuppressWarnings("unchecked")
    static <T> T named(JsonObject args) {
        return (T) THINGS.get(text(args, "name", ""));
    }

    static List<Object> await(List<?> list, JsonObject args) throws InterruptedException {
        long deadline = System.nanoTime() + number(args, "wait_ms", 0) * 1_000_000;
        synchronized (list) {
            while (list.size() < number(args, "count", 1)) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (left <= 0) {
                    break;
                }
                list.wait(left);
            }
            return new ArrayList<>(list);
        }
    }

    static Object startProducer(JsonObject args) throws Exception {
        ProducerBuilder made = PROVIDER.newProducerBuilder().setClientConfiguration(configuration(args));
        if (args.has("topics")) {
            made.setTopics(GSON.fromJson(args.get("topics"), String[].class));
        }
        if (args.has("checks")) {
            Checker checker = new Checker();
            BESIDE.put(text(args, "name", ""), checker);
            made.setTransactionChecker(checker::check);
        }
        THINGS.put(text(args, "name", ""), made.build());
        return null;
    }

    static Object sendTransaction(JsonObject args) throws Exception {
        Producer producer = named(args);
        Transaction transaction = producer.beginTransaction();
        SendReceipt sent = producer.send(message(args.getAsJsonObject("message")), transaction);
        switch (text(args, "outcome", "")) {
            case "COMMIT":
                transaction.commit();
                break;
            case "ROLLBACK":
                transaction.rollback();
                break;
            default:
        }
        return receipt(sent);
    }

    static Object sendMany(JsonObject args) throws Exception {
        Producer producer = named(args);
        List<CompletableFuture<SendReceipt>> futures = new ArrayList<>();
        args.getAsJsonArray("messages")
            .forEach(fields -> futures.add(producer.sendAsync(message(fields.getAsJsonObject()))));
        List<String> ids = new ArrayList<>();
        for (CompletableFuture<SendReceipt> future : futures) {
            ids.add(future.get().getMessageId().toString());
        }
        return ids;
    }

    static List<Object> receive(JsonObject args) throws Exception {
        List<Object> found = new ArrayList<>();
        for (MessageView view : Program.<SimpleConsumer>named(args)
            .receive((int) number(args, "max", 16), Duration.ofMillis(number(args, "invisible_ms", 0)))) {
            found.add(shape(view));
        }
        return found;
    }

    static Object startPush(JsonObject args) throws Exception {
        Collector collector = new Collector(args);
        BESIDE.put(text(args, "name", ""), collector);
        THINGS.put(text(args, "name", ""), PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(args))
            .setConsumerGroup(text(args, "group", ""))
            .setSubscriptionExpressions(subscriptions(args))
            .setConsumptionThreadCount((int) number(args, "threads", 4))
            .setMessageListener(collector::consume)
            .build());
        return null;
    }

    static Object startLite(JsonObject args) throws Exception {
        Collector collector = new Collector(args);
        BESIDE.put(text(args, "name", ""), collector);
        THINGS.put(text(args, "name", ""), PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(configuration(args))
            .setConsumerGroup(text(args, "group", ""))
            .bindTopic(text(args, "topic", ""))
            .setConsumptionThreadCount((int) number(args, "threads", 4))
            .setMessageListener(collector::consume)
            .build());
        return null;
    }

    static Object subscribeLite(JsonObject args) throws Exception {
        LitePushConsumer consumer = named(args);
        if (args.has("from_first")) {
            consumer.subscribeLite(text(args, "lite_topic", ""), OffsetOption.MIN_OFFSET);
        } else {
            consumer.subscribeLite(text(args, "lite_topic", ""));
        }
        return null;
    }

    static Object stop(JsonObject args) throws Exception {
        AutoCloseable thing = (AutoCloseable) THINGS.remove(text(args, "name", ""));
        if (thing != null) {
            thing.close();
        }
        return null;
    }

    static {
        COMMANDS.put("ping", args -> Map.of("client", "java"));
        COMMANDS.put("producer_start", Program::startProducer);
        COMMANDS.put("send", args ->
            receipt(Program.<Producer>named(args).send(message(args.getAsJsonObject("message")))));
        COMMANDS.put("send_many", Program::sendMany);
        COMMANDS.put("send_transaction", Program::sendTransaction);
        COMMANDS.put("checked", args -> await(((Checker) BESIDE.get(text(args, "name", ""))).checked, args));
        COMMANDS.put("recall", args -> Map.of("message_id", Program.<Producer>named(args)
            .recallMessage(text(args, "topic", ""), text(args, "recall_handle", "")).getMessageId().toString()));
        COMMANDS.put("simple_start", args -> {
            THINGS.put(text(args, "name", ""), PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration(args))
                .setConsumerGroup(text(args, "group", ""))
                .setAwaitDuration(Duration.ofMillis(number(args, "await_ms", 5000)))
                .setSubscriptionExpressions(subscriptions(args))
                .build());
            return null;
        });
        COMMANDS.put("receive", Program::receive);
        COMMANDS.put("ack", args -> {
            Program.<SimpleConsumer>named(args).ack(RECEIVED.get(number(args, "number", 0)));
            return null;
        });
        COMMANDS.put("change_invisible", args -> {
            Program.<SimpleConsumer>named(args).changeInvisibleDuration(
                RECEIVED.get(number(args, "number", 0)), Duration.ofMillis(number(args, "invisible_ms", 0)));
            return null;
        });
        COMMANDS.put("push_start", Program::startPush);
        COMMANDS.put("push_await", args -> await(((Collector) BESIDE.get(text(args, "name", ""))).deliveries, args));
        COMMANDS.put("lite_start", Program::startLite);
        COMMANDS.put("lite_subscribe", Program::subscribeLite);
        COMMANDS.put("lite_unsubscribe", args -> {
            Program.<LitePushConsumer>named(args).unsubscribeLite(text(args, "lite_topic", ""));
            return null;
        });
        COMMANDS.put("lite_topics", args -> new TreeSet<>(Program.<LitePushConsumer>named(args).getLiteTopicSet()));
        for (String kind : new String[] {"producer", "simple", "push", "lite"}) {
            COMMANDS.put(kind + "_stop", Program::stop);
        }
    }

    static Map<String, Object> failure(Throwable thrown) {
        Throwable cause = thrown instanceof java.util.concurrent.ExecutionException ? thrown.getCause() : thrown;
        int code = -1;
        String said = String.valueOf(cause.getMessage());
        java.util.regex.Matcher found = java.util.regex.Pattern.compile("response-code=(\\d+)").matcher(said);
        if (cause instanceof ClientException && found.find()) {
            code = Integer.parseInt(found.group(1));
        }
        Map<String, Object> error = new LinkedHashMap<>();
        error.put("type", cause.getClass().getSimpleName());
        error.put("message", said);
        error.put("code", code);
        return error;
    }

    static void answer(JsonObject args) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("id", args.get("id").getAsLong());
        try {
            reply.put("result", COMMANDS.get(text(args, "command", "")).run(args));
        } catch (Throwable thrown) {
            reply.put("error", failure(thrown));
        }
        synchronized (OUT) {
            OUT.println(GSON.toJson(reply));
            OUT.flush();
        }
    }

    public static void main(String[] ignored) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonObject args = GSON.fromJson(line, JsonObject.class);
            Thread thread = new Thread(() -> answer(args));
            thread.setDaemon(true);
            thread.start();
        }
        Runtime.getRuntime().halt(0);
    }
}
