import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.io.BufferedReader;
import java.io.InputStreamReader;
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
 * Cases: sync (WINDOW threads), async (WINDOW in flight), batch (the same with autoBatch), consume, latency. Each line of standard input is one round (seconds for the
 * sends, messages for the others) and is answered by one line of JSON; whoever asks drops the first, the warm-up.
 * bench/perf.py is the same for the Python client.
 */
public final class Perf {
    private static final int BODY_BYTES = 128;
    private static final long LATENCY_PACE_NS = 2_000_000;
    private static final long ROUND_S_MAX = 120;

    private final String namesrv;
    private final String topic;
    private final String run = Long.toString(System.currentTimeMillis(), 36) + "-" + ProcessHandle.current().pid();
    private final byte[] body = new byte[BODY_BYTES];
    private int rounds;
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
            System.out.println(round.run(Double.parseDouble(line.trim())));
            System.out.flush();
        }
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
