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
 * Topics and timers are asked for two ports below it, as the official slave does.
 */
public class SlaveAsks {
    public static void main(String[] addresses) throws Exception {
        BrokerOuterAPI api = new BrokerOuterAPI(new NettyClientConfig(), new AuthConfig());
        api.start();
        String master = addresses[0];
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("topics", api.getAllTopicConfig(master));
        found.put("groups", api.getAllSubscriptionGroupConfig(master));
        found.put("offsets", api.getAllConsumerOffset(master));
        found.put("delays", api.getAllDelayOffset(master));
        found.put("modes", api.getAllMessageRequestMode(master));
        found.put("timerCounts", api.getTimerMetrics(master));
        TimerCheckpoint timers = api.getTimerCheckPoint(master);
        found.put("timers", new long[] {
            timers.getLastReadTimeMs(), timers.getLastTimerLogFlushPos(), timers.getLastTimerQueueOffset(),
            timers.getMasterTimerQueueOffset(), timers.getDataVersion().getStateVersion(),
            timers.getDataVersion().getTimestamp(), timers.getDataVersion().getCounter().get()});
        BrokerSyncInfo info = api.retrieveBrokerHaInfo(master);
        found.put("haInfo", new Object[] {
            info.getMasterHaAddress(), info.getMasterFlushOffset(), info.getMasterAddress()});
        api.sendBrokerHaInfo(master, "127.0.0.1:7", 9, "127.0.0.1:5");
        System.out.println(RemotingSerializable.toJson(found, false));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
