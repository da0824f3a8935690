// Drives mqtt.js against a server: node session.js URL CA-FILE. Runs every case with MQTT 3.1.1 and 5.0; exits with 0, or
// with 1 and the reason on stderr.

'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const mqtt = require('mqtt');

const [url, authority] = process.argv.slice(2);
const ca = authority ? fs.readFileSync(authority) : undefined;

async function open(clientId, options = {}) {
  const client = mqtt.connect(url, {
    clientId, username: 'guest', password: 'guest', reconnectPeriod: 0, ca, ...options,
  });
  client.waiting = [];
  client.came = [];
  client.on('message', (topic, payload, packet) => {
    const one = { topic, payload: payload.toString(), qos: packet.qos, retain: packet.retain, properties: packet.properties };
    if (client.waiting.length) client.waiting.shift()(one);
    else client.came.push(one);
  });
  // Messages of a session that goes on come right behind CONNACK, so `message` is listened to before.
  await new Promise((resolve, reject) => client.once('connect', resolve).once('error', reject));
  return client;
}

/** Resolves with the next message. */
function next(client) {
  if (client.came.length) return Promise.resolve(client.came.shift());
  return new Promise((resolve) => client.waiting.push(resolve));
}

const cases = {
  async qualities(protocolVersion, prefix) {
    const client = await open(`${prefix}q`, { protocolVersion });
    for (const qos of [0, 1, 2]) {
      await client.subscribeAsync(`${prefix}/q${qos}/+`, { qos });
      const sent = Array.from({ length: 50 }, (_, number) => `${number}`);
      await Promise.all(sent.map((payload) => client.publishAsync(`${prefix}/q${qos}/a.b`, payload, { qos })));
      for (const payload of sent) {
        const one = await next(client);
        assert.deepStrictEqual([one.topic, one.payload, one.qos], [`${prefix}/q${qos}/a.b`, payload, qos]);
      }
    }
    await client.endAsync();
  },

  async sessions(protocolVersion, prefix) {
    const lasting = { protocolVersion, clean: false, properties: protocolVersion === 5 ? { sessionExpiryInterval: 60 } : undefined };
    const first = await open(`${prefix}s`, lasting);
    await first.subscribeAsync(`${prefix}/session`, { qos: 2 });
    await first.endAsync();
    const other = await open(`${prefix}o`, { protocolVersion });
    for (const qos of [1, 2]) await other.publishAsync(`${prefix}/session`, `${qos}`, { qos });
    const again = await open(`${prefix}s`, lasting);
    for (const qos of [1, 2]) assert.strictEqual((await next(again)).payload, `${qos}`);
    const closed = new Promise((resolve) => again.once('close', resolve));
    const third = await open(`${prefix}s`, { protocolVersion, clean: true });  // Takes the client id over.
    await closed;
    await third.endAsync();
    await other.endAsync();
  },

  async retained(protocolVersion, prefix) {
    const client = await open(`${prefix}r`, { protocolVersion });
    await client.publishAsync(`${prefix}/kept/1`, 'kept', { qos: 1, retain: true });
    await client.subscribeAsync(`${prefix}/+/#`, { qos: 1 });
    const one = await next(client);
    assert.deepStrictEqual([one.topic, one.payload, one.retain], [`${prefix}/kept/1`, 'kept', true]);
    await client.publishAsync(`${prefix}/kept/1`, '', { qos: 1, retain: true });
    await client.endAsync();
  },

  async wills(protocolVersion, prefix) {
    const watcher = await open(`${prefix}w`, { protocolVersion });
    await watcher.subscribeAsync(`${prefix}/will`, { qos: 1 });
    const dying = await open(`${prefix}d`, { protocolVersion, will: { topic: `${prefix}/will`, payload: Buffer.from('gone'), qos: 1 } });
    dying.stream.destroy();
    assert.strictEqual((await next(watcher)).payload, 'gone');
    await watcher.endAsync();
  },

  async properties(protocolVersion, prefix) {
    if (protocolVersion !== 5) return;
    const client = await open(`${prefix}p`, { protocolVersion, properties: { topicAliasMaximum: 5 } });
    await client.subscribeAsync(`${prefix}/ask`, { qos: 1, properties: { subscriptionIdentifier: 7 } });
    await client.publishAsync(`${prefix}/ask`, 'question', { qos: 1, properties: {
      responseTopic: `${prefix}/answer`, correlationData: Buffer.from([1, 0, 255]), contentType: 'text/plain',
      payloadFormatIndicator: true, messageExpiryInterval: 60, userProperties: { colour: ['brown', 'white'] },
    } });
    const { properties } = await next(client);
    assert.strictEqual(properties.responseTopic, `${prefix}/answer`);
    assert.ok(properties.correlationData.equals(Buffer.from([1, 0, 255])));
    assert.deepStrictEqual([...properties.userProperties.colour], ['brown', 'white']);
    assert.strictEqual(properties.subscriptionIdentifier, 7);
    assert.strictEqual(properties.contentType, 'text/plain');
    assert.strictEqual(properties.payloadFormatIndicator, true);
    await client.endAsync();
  },

  async shared(protocolVersion, prefix) {
    const members = await Promise.all([1, 2].map((number) => open(`${prefix}m${number}`, { protocolVersion })));
    for (const member of members) await member.subscribeAsync(`$share/group/${prefix}/work`, { qos: 1 });
    const sender = await open(`${prefix}x`, { protocolVersion });
    for (let number = 0; number < 20; number += 1) await sender.publishAsync(`${prefix}/work`, `${number}`, { qos: 1 });
    const pause = () => new Promise((resolve) => setImmediate(resolve));
    while (members[0].came.length + members[1].came.length < 20) await pause();
    const all = members.flatMap((member) => member.came.map((one) => Number(one.payload)));
    assert.deepStrictEqual(all.sort((one, two) => one - two), Array.from({ length: 20 }, (_, number) => number));
    for (const one of [...members, sender]) await one.endAsync();
  },

  async refused(protocolVersion, prefix) {
    await assert.rejects(open(`${prefix}f`, { protocolVersion, password: 'wrong' }), { code: protocolVersion === 5 ? 134 : 4 });
  },
};

(async () => {
  for (const [name, run] of Object.entries(cases)) {
    for (const version of [4, 5]) {
      try {
        await run(version, `${name}${version}`);
      } catch (error) {
        console.error(`${name}, version ${version}:`, error);
        process.exit(1);
      }
    }
  }
  process.exit(0);
})();
