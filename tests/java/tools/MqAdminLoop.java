import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin commands in one JVM: a line of arguments parted by U+001F on stdin, its output and a line U+0004.
 *
 * The first argument is a number: a command that prints for ever is interrupted after so many lines; 0: it ends itself.
 */
public class MqAdminLoop {
    private static volatile Thread running;
    private static volatile int linesLeft;

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        PrintStream counting = new PrintStream(new OutputStream() {
            @Override public synchronized void write(int value) {
                answers.write(value);
                if (value == '\n' && --linesLeft == 0) {
                    running.interrupt();
                }
            }
        }, true);
        System.setOut(counting);
        System.setErr(counting);
        Field field = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        field.setAccessible(true);
        List<?> commands = (List<?>) field.get(null);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\u001f", 2);
            linesLeft = Integer.parseInt(parts[0]);
            // sendMessage and consumeMessage keep their client, closed, for the next call.
            commands.clear();
            String[] command = parts.length > 1 ? parts[1].split("\u001f") : new String[0];
            running = new Thread(() -> MQAdminStartup.main0(command, null));
            running.start();
            for (running.join(5); running.isAlive(); running.join(5)) {
                if (hangsInShutdown(running)) {
                    running.interrupt();
                }
            }
            answers.println("\n\u0004");
            answers.flush();
        }
        System.exit(0);
    }

    /** In one shutdown of three the 5.5.0 client waits 3 s for a thread that polls; it goes on when interrupted. */
    private static boolean hangsInShutdown(Thread thread) {
        boolean joins = false;
        for (StackTraceElement frame : thread.getStackTrace()) {
            joins |= frame.getClassName().equals("java.lang.Thread") && frame.getMethodName().equals("join");
            if (frame.getClassName().endsWith(".NettyRemotingClient") && frame.getMethodName().equals("shutdown")) {
                return joins;
            }
        }
        return false;
    }
}
