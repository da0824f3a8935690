// Drives amqplib against a server: node session.js PORT CASE. Exits with 0, or with 1 and the reason on stderr.

'use strict';

const assert = require('node:assert');
const amqp = require('amqplib');

const port = Number(process.argv[2]);
const url = `amqp://guest:guest@127.0.0.1:${port}`;

/** Resolves with the first `count` messages of a consumer. */
function messages(channel, queue, count, options) {
  return new Promise((resolve, reject) => {
    const seen = [];
    channel.consume(queue, (message) => {
      seen.push(message);
      if (seen.length === count) resolve(seen);
    }, options).catch(reject);
  });
}

/** Resolves with the error that closed a channel. */
function failure(channel) {
  return new Promise((resolve) => channel.once('error', resolve));
}

const cases = {
  async roundtrip(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    const sizes = [0, 1, 4088, 131064, 131065, 1000000];
    for (const size of sizes) {
      channel.sendToQueue(queue, Buffer.alloc(size, size % 251), {
        persistent: true, contentType: 'application/x', headers: { size, nested: { list: [1, 'two', true, null] } },
        correlationId: String(size), timestamp: 1700000000, priority: 1,
      });
    }
    await channel.waitForConfirms();
    const seen = await messages(channel, queue, sizes.length);
    for (const [at, size] of sizes.entries()) {
      const { content, fields, properties } = seen[at];
      assert.ok(content.equals(Buffer.alloc(size, size % 251)), `body of ${size} bytes`);
      assert.strictEqual(fields.redelivered, false);
      assert.strictEqual(properties.headers.size, size);
      assert.deepStrictEqual(properties.headers.nested, { list: [1, 'two', true, null] });
      assert.strictEqual(properties.correlationId, String(size));
      assert.strictEqual(properties.deliveryMode, 2);
      channel.ack(seen[at]);
    }
    assert.strictEqual((await channel.checkQueue(queue)).messageCount, 0);
  },

  async confirms(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', { durable: true, autoDelete: true });
    let confirmed = 0;
    await Promise.all(Array.from({ length: 500 }, (_, number) => new Promise((resolve, reject) => {
      channel.sendToQueue(queue, Buffer.from(String(number)), { persistent: number % 2 === 0 }, (error) => {
        if (error) reject(error);
        else { confirmed += 1; resolve(); }
      });
    })));
    assert.strictEqual(confirmed, 500);
    const order = [];
    channel.once('return', () => order.push('return'));
    await new Promise((resolve, reject) => {
      channel.publish('', 'nowhere', Buffer.from('x'), { mandatory: true }, (error) => {
        order.push('ack');
        if (error) reject(error);
        else resolve();
      });
    });
    assert.deepStrictEqual(order, ['return', 'ack']);
    await channel.deleteQueue(queue);
  },

  async exchanges(connection) {
    const channel = await connection.createChannel();
    const exchange = `amqplib-${process.pid}`;
    await channel.assertExchange(exchange, 'topic', { durable: false, autoDelete: true });
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.bindQueue(queue, exchange, 'a.*.c');
    for (const key of ['a.b.c', 'a.c', 'a.x.c', 'a.b.c.d']) channel.publish(exchange, key, Buffer.from(key));
    const seen = await messages(channel, queue, 2, { noAck: true });
    assert.deepStrictEqual(seen.map((message) => message.content.toString()), ['a.b.c', 'a.x.c']);
    assert.strictEqual(seen[0].fields.exchange, exchange);
    await channel.unbindQueue(queue, exchange, 'a.*.c');
    const error = await Promise.race([failure(channel), channel.checkExchange(exchange).catch((reason) => reason)]);
    assert.strictEqual(error.code, 404);
  },

  async headers(connection) {
    const channel = await connection.createConfirmChannel();
    const exchange = `amqplib-headers-${process.pid}`;
    await channel.assertExchange(exchange, 'headers', { durable: false });
    const matches = {
      all: { 'x-match': 'all', colour: 'red', size: 3 },
      any: { 'x-match': 'any', colour: 'red', size: 3 },
      strict: { 'x-match': 'all-with-x', 'x-way': 'north' },
    };
    const queues = {};
    for (const [name, match] of Object.entries(matches)) {
      queues[name] = (await channel.assertQueue('', { exclusive: true })).queue;
      await channel.bindQueue(queues[name], exchange, '', match);
    }
    const sent = [{ colour: 'red', size: 3 }, { colour: 'red' }, { size: 4 }, { 'x-way': 'north' }];
    for (const [number, headers] of sent.entries()) {
      channel.publish(exchange, 'any', Buffer.from(String(number)), { headers });
    }
    await channel.waitForConfirms();
    for (const [name, expected] of Object.entries({ all: ['0'], any: ['0', '1'], strict: ['3'] })) {
      const seen = await messages(channel, queues[name], expected.length, { noAck: true });
      assert.deepStrictEqual(seen.map((message) => message.content.toString()), expected, name);
      assert.strictEqual((await channel.checkQueue(queues[name])).messageCount, 0, name);
    }
    await channel.deleteExchange(exchange);
  },

  async alternate(connection) {
    const channel = await connection.createConfirmChannel();
    const [exchange, rest] = [`amqplib-main-${process.pid}`, `amqplib-rest-${process.pid}`];
    await channel.assertExchange(rest, 'fanout', { durable: false });
    await channel.assertExchange(exchange, 'direct', { durable: false, alternateExchange: rest });
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.bindQueue(queue, rest, '');
    let returned = 0;
    channel.on('return', () => { returned += 1; });
    channel.publish(exchange, 'nowhere', Buffer.from('x'), { mandatory: true });
    await channel.waitForConfirms();
    const [message] = await messages(channel, queue, 1, { noAck: true });
    assert.deepStrictEqual([message.fields.exchange, message.fields.routingKey], [exchange, 'nowhere']);
    assert.strictEqual(returned, 0);
    await channel.deleteExchange(rest);
    channel.publish(exchange, 'nowhere', Buffer.from('x'), { mandatory: true });
    await channel.waitForConfirms();
    assert.strictEqual(returned, 1);
    await channel.deleteExchange(exchange);
  },

  async letters(connection) {
    const channel = await connection.createConfirmChannel();
    const dead = (await channel.assertQueue('', { exclusive: true })).queue;
    const { queue } = await channel.assertQueue('', {
      exclusive: true, deadLetterExchange: '', deadLetterRoutingKey: dead, maxLength: 2,
    });
    const collected = messages(channel, dead, 3, { noAck: true });
    for (const body of ['dropped', 'rejected', 'expired']) {
      channel.sendToQueue(queue, Buffer.from(body), { headers: { body }, ...(body === 'expired' && { expiration: 1 }) });
    }
    await channel.waitForConfirms();
    channel.reject(await channel.get(queue), false);
    const seen = new Map((await collected).map((message) => [message.content.toString(), message.properties]));
    const reasons = { dropped: 'maxlen', rejected: 'rejected', expired: 'expired' };
    for (const [body, reason] of Object.entries(reasons)) {
      const { headers, expiration } = seen.get(body);
      const [death] = headers['x-death'];
      assert.strictEqual(headers.body, body);
      assert.deepStrictEqual([death.reason, death.queue, death.exchange, death.count], [reason, queue, '', 1]);
      assert.deepStrictEqual(death['routing-keys'], [queue]);
      assert.strictEqual(death.time['!'], 'timestamp');
      assert.strictEqual(headers['x-first-death-reason'], reason);
      assert.strictEqual(expiration, undefined);
      assert.strictEqual(death['original-expiration'], body === 'expired' ? '1' : undefined);
    }
  },

  async refused(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', {
      exclusive: true, maxLength: 1, arguments: { 'x-overflow': 'reject-publish' },
    });
    const outcome = (body) => new Promise((resolve) => {
      channel.sendToQueue(queue, Buffer.from(body), {}, (error) => resolve(error === null ? 'ack' : 'nack'));
    });
    assert.deepStrictEqual(await Promise.all([outcome('1'), outcome('2'), outcome('3')]), ['ack', 'nack', 'nack']);
    channel.ack(await channel.get(queue));
    assert.strictEqual(await outcome('4'), 'ack');
  },

  async replies(connection) {
    const [asker, server] = [await connection.createChannel(), await connection.createChannel()];
    const { queue } = await server.assertQueue('', { exclusive: true });
    await server.consume(queue, (message) => {
      const { replyTo, correlationId } = message.properties;
      server.sendToQueue(replyTo, Buffer.from(`re: ${message.content}`), { correlationId });
    }, { noAck: true });
    const answered = messages(asker, 'amq.rabbitmq.reply-to', 1, { noAck: true });
    asker.sendToQueue(queue, Buffer.from('hello'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: '7' });
    const [answer] = await answered;
    assert.strictEqual(answer.content.toString(), 're: hello');
    assert.strictEqual(answer.properties.correlationId, '7');
  },

  async prefetch(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    for (let number = 0; number < 10; number += 1) channel.sendToQueue(queue, Buffer.from(String(number)));
    await channel.prefetch(3);
    const seen = [];
    let wake = () => {};
    await channel.consume(queue, (message) => { seen.push(message); wake(); });
    const reach = async (count) => {
      while (seen.length < count) await new Promise((resolve) => { wake = resolve; });
      for (let round = 0; round < 2; round += 1) await channel.checkQueue(queue);
      assert.strictEqual(seen.length, count);
    };
    await reach(3);
    channel.nack(seen[1], false, true);
    await reach(4);
    assert.strictEqual(seen[3].content.toString(), '1');
    assert.strictEqual(seen[3].fields.redelivered, true);
    channel.ack(seen[3], true);
    await reach(7);
    channel.reject(seen[4], false);
    await reach(8);
    assert.strictEqual((await channel.checkQueue(queue)).messageCount, 3);
    await channel.recover();
    await reach(11);
    assert.deepStrictEqual(seen.slice(8).map((message) => message.content.toString()), ['4', '5', '6']);
  },

  async cancelled(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { autoDelete: true });
    const cancelled = messages(channel, queue, 1);
    await channel.checkQueue(queue);
    await (await connection.createChannel()).deleteQueue(queue);
    assert.deepStrictEqual(await cancelled, [null]);
  },

  async errors(connection) {
    const one = await connection.createChannel();
    const other = await connection.createChannel();
    const died = failure(one);
    await assert.rejects(one.checkQueue('no-such-queue'), /404/);
    const error = await died;
    assert.strictEqual(error.code, 404);
    assert.match(error.message, /NOT_FOUND - no queue 'no-such-queue' in vhost '\/'/);
    assert.deepStrictEqual([error.classId, error.methodId], [50, 10]);
    await other.assertQueue('', { exclusive: true });
    await assert.rejects(amqp.connect(`amqp://guest:wrong@127.0.0.1:${port}`), /ACCESS_REFUSED/);
  },

  async closing() {
    // The close goes out behind publishes that the server has yet to read.
    const connection = await amqp.connect(url);
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    for (let number = 0; number < 2047; number++) channel.sendToQueue(queue, Buffer.alloc(1000));
    await connection.close();
  },

  async heartbeat() {
    const connection = await amqp.connect(`${url}?heartbeat=1`);
    const failed = new Promise((_, reject) => connection.on('error', reject));
    const idle = new Promise((resolve) => setTimeout(resolve, 3500));
    await Promise.race([idle, failed]);
    await (await connection.createChannel()).assertQueue('', { exclusive: true });
    await connection.close();
  },
};

async function main() {
  const connection = await amqp.connect(url);
  await cases[process.argv[3]](connection);
  await connection.close();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
