// Evaluates filters with the official rocketmq-filter. Reads a JSON list of [expression, properties] from the file
// named first, writes a JSON list of outcomes (TRUE, FALSE, UNKNOWN, ERROR, REFUSED) to the file named second.

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

public class Sql92Oracle {
    public static void main(String[] args) throws Exception {
        JSONArray cases = JSON.parseArray(Files.readString(Path.of(args[0])));
        List<String> outcomes = new ArrayList<>();
        for (int i = 0; i < cases.size(); i++) {
            JSONArray one = cases.getJSONArray(i);
            Map<String, String> properties = new HashMap<>();
            one.getJSONObject(1).forEach((name, value) -> properties.put(name, (String) value));
            outcomes.add(outcome(one.getString(0), properties));
        }
        Files.writeString(Path.of(args[1]), JSON.toJSONString(outcomes));
    }

    private static String outcome(String text, Map<String, String> properties) {
        Expression compiled;
        try {
            compiled = new SqlFilter().compile(text);
        } catch (MQFilterException refused) {
            return "REFUSED";
        }
        try {
            Object value = compiled.evaluate(new MessageEvaluationContext(properties));
            return value == null ? "UNKNOWN" : value.toString().toUpperCase();
        } catch (Throwable error) {
            return "ERROR";
        }
    }
}
