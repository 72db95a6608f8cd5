import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs the mqadmin commands on stdin, one a line, in one JVM; also with the tools of 4.x. */
public class MqAdminCommands {
    public static void main(String[] none) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            MQAdminStartup.main0(line.split(" "), null);
        }
        System.exit(0);
    }
}
