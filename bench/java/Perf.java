import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Collections;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.LongConsumer;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What the official client does in a second, everything at its default: Perf NAMESRV TOPIC CASE [WINDOW].
 *
 * Cases: sync (WINDOW threads), async (WINDOW in flight), batch (the same with autoBatch), consume, latency, open and
 * open-batch (WINDOW a second, whatever the replies take), open-seen and open-seen-batch (until a listener has the
 * message). Each line of standard input is one round (seconds for the
 * sends, messages for the others) and is answered by one line of JSON, which ends with the bytes that the threads
 * allocated; whoever asks drops the first, the warm-up.
 * bench/perf.py is the same for the Python client.
 */
public final class Perf {
    private static final int BODY_BYTES = 128;
    private static final long LATENCY_PACE_NS = 2_000_000;
    private static final long ROUND_S_MAX = 120;
    private static final com.sun.management.ThreadMXBean THREADS =
        (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();

    private final String namesrv;
    private final String topic;
    private final String run = Long.toString(System.currentTimeMillis(), 36) + "-" + ProcessHandle.current().pid();
    private final byte[] body = new byte[BODY_BYTES];
    private int rounds;
    /** Before threads of the round ended, or -1. */
    private long allocatedAtEnd = -1;
    private boolean autoBatch;

    private interface Round {
        String run(double amount) throws Exception;
    }

    private Perf(String namesrv, String topic) {
        this.namesrv = namesrv;
        this.topic = topic;
        Arrays.fill(body, (byte) 'x');
    }

    public static void main(String[] args) throws Exception {
        Perf perf = new Perf(args[0], args[1]);
        switch (args[2]) {
            case "sync" -> {
                int threads = Integer.parseInt(args[3]);
                perf.withProducer(producer -> perf.serve(seconds -> perf.sync(producer, threads, seconds)));
            }
            case "async", "batch" -> {
                int window = Integer.parseInt(args[3]);
                perf.autoBatch = args[2].equals("batch");
                perf.withProducer(producer -> perf.serve(seconds -> perf.async(producer, window, seconds)));
            }
            case "open", "open-batch", "open-seen", "open-seen-batch" -> {
                int rate = Integer.parseInt(args[3]);
                boolean seen = args[2].startsWith("open-seen");
                perf.autoBatch = args[2].endsWith("-batch");
                perf.withProducer(producer -> {
                    if (perf.autoBatch) {
                        // As long as confluent-kafka gathers by default.
                        producer.batchMaxDelayMs(5);
                    }
                    if (seen) {
                        perf.serveSeen(producer, rate);
                    } else {
                        perf.serve(seconds -> perf.open(producer, rate, seconds, null));
                    }
                });
            }
            case "consume" -> perf.serve(count -> perf.consume((int) count));
            case "latency" -> perf.withProducer(perf::serveLatency);
            default -> throw new IllegalArgumentException("no case " + args[2]);
        }
        System.exit(0);
    }

    private interface WithProducer {
        void act(DefaultMQProducer producer) throws Exception;
    }

    private void withProducer(WithProducer with) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_perf");
        producer.setNamesrvAddr(namesrv);
        producer.setAutoBatch(autoBatch);
        producer.start();
        with.act(producer);
        producer.shutdown();
    }

    private void serve(Round round) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            long before = allocated();
            allocatedAtEnd = -1;
            String answer = round.run(Double.parseDouble(line.trim()));
            long bytes = (allocatedAtEnd < 0 ? allocated() : allocatedAtEnd) - before;
            System.out.println(answer.substring(0, answer.length() - 1) + ",\"allocated\":" + bytes + "}");
            System.out.flush();
        }
    }

    /** By the threads that live. */
    private static long allocated() {
        return LongStream.of(THREADS.getThreadAllocatedBytes(THREADS.getAllThreadIds())).filter(n -> n > 0).sum();
    }

    private String sync(DefaultMQProducer producer, int threads, double seconds) throws Exception {
        long started = System.nanoTime();
        long end = started + (long) (seconds * 1e9);
        Callable<LongStream> work = () -> {
            LongStream.Builder taken = LongStream.builder();
            for (long began = System.nanoTime(); began < end; began = System.nanoTime()) {
                producer.send(new Message(topic, body));
                taken.add(System.nanoTime() - began);
            }
            return taken.build();
        };
        LongStream taken = LongStream.empty();
        if (threads == 1) {
            taken = work.call();
        } else {
            ExecutorService pool = Executors.newFixedThreadPool(threads);
            for (Future<LongStream> each : pool.invokeAll(Collections.nCopies(threads, work))) {
                taken = LongStream.concat(taken, each.get());
            }
            allocatedAtEnd = allocated();
            pool.shutdown();
        }
        long ns = System.nanoTime() - started;
        long[] sorted = taken.sorted().toArray();
        return String.format(Locale.ROOT, "{\"count\":%d,\"seconds\":%.6f,\"failed\":0,\"p50_us\":%.1f,\"p99_us\":%.1f}",
            sorted.length, ns / 1e9, sorted[sorted.length / 2] / 1e3, sorted[(int) (sorted.length * 0.99)] / 1e3);
    }

    private String async(DefaultMQProducer producer, int window, double seconds) throws Exception {
        Semaphore room = new Semaphore(window);
        AtomicLong done = new AtomicLong();
        AtomicInteger failed = new AtomicInteger();
        SendCallback callback = new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                done.incrementAndGet();
                room.release();
            }

            @Override public void onException(Throwable problem) {
                failed.incrementAndGet();
                room.release();
            }
        };
        long started = System.nanoTime();
        long end = started + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            room.acquire();
            producer.send(new Message(topic, body), callback);
        }
        if (!room.tryAcquire(window, 30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("sends without an end");
        }
        return rate(done.get(), System.nanoTime() - started, failed.get());
    }

    /** Ends sends of an open loop when the listener of this process has the message. */
    private static final class Seen {
        private final long mark = System.nanoTime() ^ ProcessHandle.current().pid();
        private long round;
        private LongConsumer ended = number -> { };

        synchronized void begin(LongConsumer ended) {
            this.ended = ended;
            round++;
        }

        synchronized byte[] body(byte[] plain, int number) {
            byte[] stamped = plain.clone();
            ByteBuffer.wrap(stamped).putLong(mark + round).putInt(number);
            return stamped;
        }

        synchronized void note(byte[] body) {
            ByteBuffer got = ByteBuffer.wrap(body);
            if (got.getLong() == mark + round) {
                ended.accept(got.getInt());
            }
        }
    }

    private void serveSeen(DefaultMQProducer producer, int rate) throws Exception {
        Seen seen = new Seen();
        DefaultMQPushConsumer consumer = consumer("open");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                seen.note(message.getBody());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        serve(seconds -> open(producer, rate, seconds, seen));
        consumer.shutdown();
    }

    /**
     * An even rate; each time begins when the send was due, and ends with its acknowledgement, or when its message is
     * `seen`. A failed one counts as the whole round.
     */
    private String open(DefaultMQProducer producer, int rate, double seconds, Seen seen) throws Exception {
        int count = Math.max((int) (rate * seconds), 1);
        long[] taken = new long[count];
        AtomicInteger failed = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(count);
        long started = System.nanoTime();
        if (seen != null) {
            seen.begin(number -> {
                if (taken[(int) number] == 0) {
                    taken[(int) number] = System.nanoTime() - started - (long) (number * 1e9 / rate);
                    all.countDown();
                }
            });
        }
        for (int number = 0; number < count; number++) {
            int index = number;
            long due = started + (long) (number * 1e9 / rate);
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            SendCallback callback = new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    if (seen == null) {
                        taken[index] = System.nanoTime() - due;
                        all.countDown();
                    }
                }

                @Override public void onException(Throwable problem) {
                    taken[index] = Long.MAX_VALUE;
                    failed.incrementAndGet();
                    all.countDown();
                }
            };
            try {
                producer.send(new Message(topic, seen == null ? body : seen.body(body, number)), callback);
            } catch (Exception e) {
                callback.onException(e);
            }
        }
        if (!all.await(ROUND_S_MAX, TimeUnit.SECONDS)) {
            throw new IllegalStateException("sends without an end");
        }
        long ns = System.nanoTime() - started;
        long[] sorted = LongStream.of(taken).map(each -> Math.min(each, ns)).sorted().toArray();
        return String.format(Locale.ROOT, "{\"count\":%d,\"seconds\":%.6f,\"failed\":%d,"
            + "\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f}", count - failed.get(), ns / 1e9, failed.get(),
            sorted[count / 2] / 1e3, sorted[(int) (count * 0.99)] / 1e3, sorted[(int) (count * 0.999)] / 1e3);
    }

    /** From the first message's arrival to the last one's, by a group that is new. */
    private String consume(int count) throws Exception {
        AtomicInteger seen = new AtomicInteger();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer("consume");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            int number = seen.addAndGet(messages.size());
            if (number <= messages.size()) {
                first.set(System.nanoTime());
            }
            if (number == count) {
                last.set(System.nanoTime());
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long started = System.nanoTime();
        consumer.start();
        if (!all.await(ROUND_S_MAX, TimeUnit.SECONDS)) {
            throw new IllegalStateException("only " + seen.get() + " of " + count + " messages came");
        }
        allocatedAtEnd = allocated();
        consumer.shutdown();
        return String.format(Locale.ROOT, "{\"count\":%d,\"seconds\":%.6f,\"failed\":0,\"first_ms\":%.3f}",
            count, (last.get() - first.get()) / 1e9, (first.get() - started) / 1e6);
    }

    /** Each body begins with the sender's clock and its number; the listener runs in this process too. */
    private void serveLatency(DefaultMQProducer producer) throws Exception {
        long mark = System.nanoTime() ^ ProcessHandle.current().pid();
        Arrivals arrivals = new Arrivals();
        DefaultMQPushConsumer consumer = consumer("latency");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                ByteBuffer got = ByteBuffer.wrap(message.getBody());
                if (got.getLong() == mark) {
                    arrivals.note(got.getInt(), now - got.getLong());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        serve(amount -> {
            int count = (int) amount;
            arrivals.begin(count);
            long next = System.nanoTime();
            for (int number = 0; number < count; number++) {
                next += LATENCY_PACE_NS;
                for (long left = next - System.nanoTime(); left > 0; left = next - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                next = Math.max(next, System.nanoTime() - LATENCY_PACE_NS);
                byte[] stamped = body.clone();
                ByteBuffer.wrap(stamped).putLong(mark).putInt(number).putLong(System.nanoTime());
                producer.send(new Message(topic, stamped));
            }
            long[] sorted = arrivals.await();
            return String.format(Locale.ROOT, "{\"count\":%d,\"p50_us\":%.1f,\"p99_us\":%.1f}",
                count, sorted[count / 2] / 1e3, sorted[(int) (count * 0.99)] / 1e3);
        });
        consumer.shutdown();
    }

    private static final class Arrivals {
        private long[] latencies = new long[0];
        private int left;

        synchronized void begin(int count) {
            latencies = new long[count];
            left = count;
        }

        synchronized void note(int number, long latency) {
            if (number < latencies.length && latencies[number] == 0) {
                latencies[number] = latency;
                if (--left == 0) {
                    notifyAll();
                }
            }
        }

        synchronized long[] await() throws InterruptedException {
            long end = System.nanoTime() + ROUND_S_MAX * 1_000_000_000L;
            while (left > 0) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException(left + " messages did not come");
                }
                wait(1000);
            }
            long[] sorted = latencies.clone();
            Arrays.sort(sorted);
            return sorted;
        }
    }

    private DefaultMQPushConsumer consumer(String what) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_" + what + "_" + run + "_" + ++rounds);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static String rate(long count, long ns, int failed) {
        return String.format(Locale.ROOT, "{\"count\":%d,\"seconds\":%.6f,\"failed\":%d}", count, ns / 1e9, failed);
    }
}
