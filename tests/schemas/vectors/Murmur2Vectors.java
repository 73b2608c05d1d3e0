import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.utils.Utils;

/**
 * Prints murmur2.json: murmur2 and the default partition of many keys, by Kafka's own Java client.
 *
 * <p>java -cp kafka-clients-4.4.0.jar:slf4j-api-1.7.36.jar Murmur2Vectors.java > murmur2.json
 */
public class Murmur2Vectors {
    static final int[] PARTITIONS = {1, 2, 3, 12, 50, 1000};

    public static void main(String[] args) {
        List<String> keys = new ArrayList<>();
        Random random = new Random(42);
        String ascii = "abcdefghijklmnopqrstuvwxyz0123456789-._:";
        String[] wide = {"é", "ß", "Ж", "中", "日", "€", "\uD83D\uDE80", "a", "1"};
        keys.add("");
        for (int length = 1; length <= 70; length++) {
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < length; i++) text.append(ascii.charAt(random.nextInt(ascii.length())));
            keys.add(text.toString());
        }
        for (int length = 1; length <= 40; length++) {
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < length; i++) text.append(wide[random.nextInt(wide.length)]);
            keys.add(text.toString());
        }
        for (int i = 0; i < 100; i++) keys.add(new UUID(random.nextLong(), random.nextLong()).toString());
        keys.add("\u0000\u007f\u0080\u00ff");
        StringBuilder out = new StringBuilder("{\n  \"partitionCounts\": " + Arrays.toString(PARTITIONS) + ",\n  \"vectors\": [\n");
        for (int k = 0; k < keys.size(); k++) {
            byte[] bytes = keys.get(k).getBytes(StandardCharsets.UTF_8);
            int hash = Utils.murmur2(bytes);
            int[] homes = new int[PARTITIONS.length];
            for (int p = 0; p < homes.length; p++) homes[p] = Utils.toPositive(hash) % PARTITIONS[p];
            out.append("    {\"key\": \"").append(escaped(keys.get(k))).append("\", \"murmur2\": ").append(hash)
               .append(", \"partitions\": ").append(Arrays.toString(homes)).append(k + 1 < keys.size() ? "},\n" : "}\n");
        }
        System.out.print(out.append("  ]\n}\n"));
    }

    static String escaped(String text) {
        StringBuilder out = new StringBuilder();
        for (char c : text.toCharArray()) out.append(c < 0x20 || c > 0x7e ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        return out.toString();
    }
}
