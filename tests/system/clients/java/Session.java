// Drives Java's client against a server: java Session.java PORT CASE. Exits with 0, or with 1 and the reason on stderr.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class Session {
    private static final int SECONDS = 30;

    static class Noting extends DefaultConsumer {
        final BlockingQueue<String> seen = new LinkedBlockingQueue<>();

        Noting(Channel channel) {
            super(channel);
        }

        @Override
        public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
            seen.add(new String(body));
        }

        @Override
        public void handleCancel(String tag) {
            seen.add("cancelled");
        }

        void expect(String wanted) throws Exception {
            String found = seen.poll(SECONDS, TimeUnit.SECONDS);
            if (!wanted.equals(found)) {
                throw new AssertionError("expected " + wanted + ", found " + found);
            }
        }
    }

    /** A connection that is closed behind publishes which the server has yet to read. */
    static void closing(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        String queue = channel.queueDeclare().getQueue();
        for (int number = 0; number < 5000; number++) {
            channel.basicPublish("", queue, null, new byte[1000]);
        }
        connection.close();
    }

    /** A queue that is deleted by the channel that consumes from it. */
    static void deleting(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        String queue = channel.queueDeclare().getQueue();
        Noting consumer = new Noting(channel);
        channel.basicConsume(queue, true, consumer);
        channel.basicPublish("", queue, null, "hello".getBytes());
        channel.queueDelete(queue);
        consumer.expect("hello");
        consumer.expect("cancelled");
        channel.queueDeclare();
    }

    /** Ten channels that declare at the same time. */
    static void declaring(Connection connection) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(10);
        List<Future<Integer>> done = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            Callable<Integer> declare = () -> {
                Channel channel = connection.createChannel();
                for (int count = 0; count < 30; count++) {
                    String queue = channel.queueDeclare().getQueue();
                    channel.queueBind(queue, "amq.topic", "key." + count);
                }
                return 30;
            };
            done.add(threads.submit(declare));
        }
        int declared = 0;
        for (Future<Integer> each : done) {
            declared += each.get(SECONDS, TimeUnit.SECONDS);
        }
        threads.shutdown();
        if (declared != 300) {
            throw new AssertionError(declared + " were declared");
        }
    }

    public static void main(String[] given) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(given[0]));
        factory.setAutomaticRecoveryEnabled(false);
        Connection connection = factory.newConnection();
        switch (given[1]) {
            case "closing": closing(connection); break;
            case "deleting": deleting(connection); break;
            case "declaring": declaring(connection); break;
            default: throw new AssertionError(given[1]);
        }
        if (connection.isOpen()) {
            connection.close();
        }
    }
}
