// Drives clients of STOMP against a server: node session.js TCP-PORT WEBSOCKET-PORT. Exits with 0, or with 1 and the
// reason on stderr.

'use strict';

const assert = require('node:assert');
const { Client } = require('@stomp/stompjs');
const stompit = require('stompit');
const WebSocket = require('ws');

const [tcpPort, webPort] = process.argv.slice(2).map(Number);

/** Resolves when stompjs has logged in over WebSocket. */
function openWeb(options = {}) {
  return new Promise((resolve, reject) => {
    const client = new Client({
      webSocketFactory: () => new WebSocket(`ws://127.0.0.1:${webPort}/ws`, ['v12.stomp', 'v11.stomp', 'v10.stomp']),
      connectHeaders: { login: 'guest', passcode: 'guest', host: '/' },
      reconnectDelay: 0,
      onConnect: () => resolve(client),
      onStompError: (frame) => reject(new Error(`${frame.headers.message}: ${frame.body}`)),
      onWebSocketError: reject,
      ...options,
    });
    client.activate();
  });
}

function receipt(client, name) {
  return new Promise((resolve) => client.watchForReceipt(name, resolve));
}

/** Resolves when stompit has logged in over TCP. */
function openTcp() {
  const options = { host: '127.0.0.1', port: tcpPort, connectHeaders: { host: '/', login: 'guest', passcode: 'guest' } };
  return new Promise((resolve, reject) => {
    stompit.connect(options, (error, client) => (error ? reject(error) : resolve(client)));
  });
}

const cases = {
  async webThereAndBack() {
    const client = await openWeb();
    const got = [];
    const all = new Promise((resolve) => {
      client.subscribe('/queue/node-web', (message) => {
        got.push([message.headers.number, message.body]);
        message.ack();
        if (got.length === 100) resolve();
      }, { ack: 'client-individual', 'prefetch-count': '10' });
    });
    const sent = Array.from({ length: 100 }, (_, number) => [`${number}`, `body ${number} \u00e9 \u{1f407}`]);
    const last = receipt(client, 'last');
    sent.forEach(([number, body]) => client.publish({
      destination: '/queue/node-web', body, headers: { number, persistent: 'true', ...(number === '99' ? { receipt: 'last' } : {}) },
    }));
    await Promise.all([all, last]);
    assert.deepStrictEqual(got, sent);
    await client.deactivate();
  },

  async webBinary() {
    const client = await openWeb({ forceBinaryWSFrames: true });
    const bytes = Uint8Array.from({ length: 256 }, (_, number) => number);
    const came = new Promise((resolve) => client.subscribe('/topic/node.*', (message) => resolve(message.binaryBody)));
    const subscribed = receipt(client, 'subscribed');
    client.subscribe('/topic/other', () => {}, { receipt: 'subscribed' });
    await subscribed;
    client.publish({ destination: '/topic/node.binary', binaryBody: bytes });
    assert.deepStrictEqual(Buffer.from(await came), Buffer.from(bytes));
    await client.deactivate();
  },

  async webTransactions() {
    const client = await openWeb();
    const got = [];
    const done = new Promise((resolve) => client.subscribe('/queue/node-tx', ({ body }) => {
      got.push(body);
      if (body === 'end') resolve();
    }));
    const aborted = client.begin();
    client.publish({ destination: '/queue/node-tx', body: 'never', headers: { transaction: aborted.id } });
    aborted.abort();
    const committed = client.begin();
    client.publish({ destination: '/queue/node-tx', body: 'one', headers: { transaction: committed.id } });
    committed.commit();
    client.publish({ destination: '/queue/node-tx', body: 'end' });
    await done;
    assert.deepStrictEqual(got, ['one', 'end']);
    await client.deactivate();
  },

  async webHeartBeats() {
    let tell;
    const beaten = new Promise((resolve) => { tell = resolve; });
    const debug = (text) => text.includes('PONG') && tell();
    const client = await openWeb({ heartbeatIncoming: 1000, heartbeatOutgoing: 1000, debug });
    await beaten;
    await client.deactivate();
  },

  async webError() {
    let tell;
    const failed = new Promise((resolve) => { tell = resolve; });
    const client = await openWeb({ onStompError: tell });
    client.subscribe('/amq/queue/node-missing', () => {});
    assert.strictEqual((await failed).headers.message, 'not_found');
    await client.deactivate();
  },

  async tcpThereAndBack() {
    const client = await openTcp();
    const got = [];
    const all = new Promise((resolve, reject) => {
      client.subscribe({ destination: '/queue/node-tcp', ack: 'client-individual' }, (error, message) => {
        if (error) { reject(error); return; }
        message.readString('utf-8', (failure, body) => {
          if (failure) { reject(failure); return; }
          got.push(body);
          client.ack(message);
          if (got.length === 50) resolve();
        });
      });
    });
    const sent = Array.from({ length: 50 }, (_, number) => `body ${number}`);
    for (const body of sent) {
      const frame = client.send({ destination: '/queue/node-tcp', 'content-type': 'text/plain' });
      frame.write(body);
      frame.end();
    }
    await all;
    assert.deepStrictEqual(got, sent);
    await new Promise((resolve) => client.disconnect(resolve));
  },
};

async function main() {
  for (const [name, run] of Object.entries(cases)) {
    try {
      await run();
    } catch (error) {
      throw new Error(`${name}: ${error.stack || error}`);
    }
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error.message);
  process.exit(1);
});
