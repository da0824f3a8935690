// Drives amqplib against two nodes of a cluster: node remote.js HOME_PORT EDGE_PORT. Exits with 0, or with 1 and the
// reason on stderr. All queues are declared at the first and used at the second.

'use strict';

const assert = require('node:assert');
const amqp = require('amqplib');

const [home, edge] = process.argv.slice(2, 4).map((port) => `amqp://guest:guest@127.0.0.1:${port}`);

async function main() {
  const [at, there] = await Promise.all([amqp.connect(home), amqp.connect(edge)]);
  const owner = await at.createChannel();
  const queue = `amqplib-${process.pid}`;
  await owner.assertQueue(queue, { durable: true });

  const channel = await there.createConfirmChannel();
  assert.strictEqual((await channel.checkQueue(queue)).messageCount, 0);
  for (let number = 0; number < 300; number += 1) {
    channel.sendToQueue(queue, Buffer.alloc(number * 100, number % 251), { persistent: true, headers: { number } });
  }
  await channel.waitForConfirms();
  assert.strictEqual((await owner.checkQueue(queue)).messageCount, 300);

  const first = await channel.get(queue);
  assert.strictEqual(first.fields.messageCount, 299);
  channel.nack(first);
  await channel.prefetch(20);
  const cancelled = await new Promise((resolve, reject) => {
    let expected = 0;
    channel.consume(queue, (message) => {
      if (message === null) {
        resolve(expected);
        return;
      }
      try {
        assert.strictEqual(message.properties.headers.number, expected);
        assert.strictEqual(message.fields.redelivered, expected === 0);
        assert.strictEqual(message.content.length, expected * 100);
      } catch (error) {
        reject(error);
        return;
      }
      channel.ack(message);
      expected += 1;
      if (expected === 300) owner.deleteQueue(queue).catch(reject);
    }).catch(reject);
  });
  assert.strictEqual(cancelled, 300);

  const failed = new Promise((resolve) => channel.once('error', resolve));
  await assert.rejects(channel.checkQueue(queue));
  assert.strictEqual((await failed).code, 404);
  await Promise.all([at.close(), there.close()]);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
