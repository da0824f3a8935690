// Connections of STOMP clients, over TCP and WebSocket.

import { connectionList } from "./connections.js";
import { number } from "./format.js";

export const stomp = (app) => connectionList(app, {
  title: "STOMP",
  where: "connections",
  query: { protocol: "stomp" },
  none: "They need a listener: stomp.listeners.tcp.1 = 61613",
  more: [{ title: "Received frames", sort: "recv_cnt", number: true, off: true, cell: (one) => number(one.recv_cnt) }],
});
