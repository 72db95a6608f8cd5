import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Drives the official Java client: one JSON command a line on stdin, one JSON answer a line on stdout.
 *
 * {"id": 1, "command": "send", ...} is answered by {"id": 1, "result": {...}} or {"id": 1, "error": {...}}.
 * Commands run side by side, so that a waiting one holds up no other. End of stdin ends the process.
 */
public final class Driver {
    interface Command {
        Object run(JSONObject args) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);  // Whatever the client prints must not mix with the answers.

        Map<String, Command> commands = new HashMap<>();
        commands.put("ping", args -> Map.of(
            "client", org.apache.rocketmq.common.MQVersion.getVersionDesc(
                org.apache.rocketmq.common.MQVersion.CURRENT_VERSION),
            "java", System.getProperty("java.version")));
        Producers producers = new Producers();
        producers.register(commands);
        new PushConsumers().register(commands);
        new PullConsumers().register(commands);
        new Admins().register(commands);
        new Transactions().register(commands);
        new Requests().register(commands);

        ExecutorService runners = Executors.newCachedThreadPool(runnable -> {
            Thread thread = new Thread(runnable);
            thread.setDaemon(true);
            return thread;
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject args = JSON.parseObject(line);
            runners.execute(() -> {
                String answer = answer(commands, args);
                synchronized (answers) {
                    answers.println(answer);
                }
            });
        }
        System.exit(0);  // The client's own threads would keep the process alive.
    }

    private static String answer(Map<String, Command> commands, JSONObject args) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", args.get("id"));
        try {
            Command command = commands.get(args.getString("command"));
            if (command == null) {
                throw new IllegalArgumentException("no command " + args.getString("command"));
            }
            answer.put("result", command.run(args));
        } catch (Throwable problem) {
            problem.printStackTrace();
            Map<String, Object> error = new LinkedHashMap<>();
            error.put("type", problem.getClass().getSimpleName());
            error.put("message", String.valueOf(problem.getMessage()));
            error.put("code", codeOf(problem));
            answer.put("error", error);
        }
        return JSON.toJSONString(answer, SerializerFeature.WriteMapNullValue,
            SerializerFeature.DisableCircularReferenceDetect);
    }

    private static int codeOf(Throwable problem) {
        if (problem instanceof org.apache.rocketmq.client.exception.MQBrokerException) {
            return ((org.apache.rocketmq.client.exception.MQBrokerException) problem).getResponseCode();
        }
        if (problem instanceof org.apache.rocketmq.client.exception.MQClientException) {
            return ((org.apache.rocketmq.client.exception.MQClientException) problem).getResponseCode();
        }
        return -1;
    }
}
