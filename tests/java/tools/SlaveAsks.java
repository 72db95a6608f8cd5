import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.protocol.BrokerSyncInfo;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.store.timer.TimerCheckpoint;

/**
 * Asks a broker what Java's slave asks its master, by the slave's own code, and prints what it read as one JSON object.
 *
 * Topics and timers are asked for two ports below the address given, as the official slave does.
 */
public class SlaveAsks {
    public static void main(String[] addresses) throws Exception {
        BrokerOuterAPI api = new BrokerOuterAPI(new NettyClientConfig(), new AuthConfig());
        api.start();
        String port = addresses[0];
        String above = addresses[1];
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("topics", api.getAllTopicConfig(above));
        found.put("groups", api.getAllSubscriptionGroupConfig(port));
        found.put("offsets", api.getAllConsumerOffset(port));
        found.put("delays", api.getAllDelayOffset(port));
        found.put("modes", api.getAllMessageRequestMode(port));
        found.put("timerCounts", api.getTimerMetrics(above));
        TimerCheckpoint timers = api.getTimerCheckPoint(above);
        found.put("timers", new long[] {
            timers.getLastReadTimeMs(), timers.getLastTimerLogFlushPos(), timers.getLastTimerQueueOffset(),
            timers.getMasterTimerQueueOffset(), timers.getDataVersion().getStateVersion(),
            timers.getDataVersion().getTimestamp(), timers.getDataVersion().getCounter().get()});
        BrokerSyncInfo info = api.retrieveBrokerHaInfo(port);
        found.put("haInfo", new Object[] {
            info.getMasterHaAddress(), info.getMasterFlushOffset(), info.getMasterAddress()});
        api.sendBrokerHaInfo(port, "127.0.0.1:7", 9, "127.0.0.1:5");
        System.out.println(RemotingSerializable.toJson(found, false));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
