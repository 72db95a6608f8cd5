import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin commands in one JVM: a line of arguments parted by U+001F on stdin, its output and a line U+0004. */
public class MqAdminLoop {
    public static void main(String[] none) throws Exception {
        System.setErr(System.out);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            MQAdminStartup.main0(line.split("\u001f"), null);
            System.out.println("\n\u0004");
            System.out.flush();
        }
    }
}
