// Drives the official Node client of RocketMQ 5: one JSON command a line on stdin, one JSON answer a line on stdout.
// The commands and their arguments are those of python/program.py. End of stdin ends the process.
'use strict';

const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const SQL = 2;
const RESOLUTIONS = { COMMIT: 1, ROLLBACK: 2, UNKNOWN: 0 };
const things = new Map();
const received = new Map();
let numbers = 0;

const quiet = { info() {}, debug() {}, warn: console.error, error: console.error };
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

function options(args) {
  const made = { endpoints: args.endpoints, namespace: '', requestTimeout: args.timeout_ms ?? 20000, logger: quiet };
  if (args.access_key) {
    made.sessionCredentials = { accessKey: args.access_key, accessSecret: args.secret_key };
  }
  return made;
}

function subscriptions(args) {
  const found = new Map();
  for (const [ topic, expression ] of Object.entries(args.subscriptions)) {
    found.set(topic, expression.startsWith('sql:') ? new FilterExpression(expression.slice(4), SQL) : new FilterExpression(expression));
  }
  return found;
}

function shape(view) {
  const number = ++numbers;
  received.set(number, view);
  return {
    number,
    message_id: view.messageId,
    topic: view.topic,
    body: view.body.toString('base64'),
    tag: view.tag || null,
    keys: [ ...view.keys ].sort(),
    properties: Object.fromEntries(view.properties),
    group: view.messageGroup || null,
    attempt: view.deliveryAttempt,
    born_host: view.bornHost,
    born_timestamp_ms: view.bornTimestamp?.getTime() ?? null,
    delivery_timestamp_ms: view.deliveryTimestamp?.getTime() || null,
    at: performance.now() / 1000,
  };
}

function message(fields) {
  const made = { topic: fields.topic, body: Buffer.from(fields.body, 'base64') };
  if (fields.tag) made.tag = fields.tag;
  if (fields.keys) made.keys = fields.keys;
  if (fields.group) made.messageGroup = fields.group;
  if (fields.delivery_timestamp_ms) made.deliveryTimestamp = new Date(fields.delivery_timestamp_ms);
  if (fields.properties) made.properties = new Map(Object.entries(fields.properties));
  return made;
}

// A list that is waited for until it is long enough.
class Waited {
  list = [];
  waiting = new Set();
  push(item) {
    this.list.push(item);
    for (const wake of this.waiting) wake();
  }
  async await(args) {
    const end = Date.now() + args.wait_ms;
    while (this.list.length < args.count && Date.now() < end) {
      await new Promise(resolve => {
        const wake = () => { clearTimeout(timer); this.waiting.delete(wake); resolve(); };
        const timer = setTimeout(wake, end - Date.now());
        this.waiting.add(wake);
      });
    }
    return [ ...this.list ];
  }
}

const receipt = sent => ({ message_id: sent.messageId, recall_handle: sent.recallHandle || null, offset: sent.offset });

async function stop(args) {
  const { thing } = things.get(args.name);
  things.delete(args.name);
  await thing.shutdown();
}

const commands = {
  ping: async () => ({ client: 'node' }),
  async producer_start(args) {
    const waited = new Waited();
    const checker = { async check(view) { waited.push(view.messageId); return RESOLUTIONS[view.properties.get('check')]; } };
    const made = { ...options(args), topics: args.topics };
    if (args.checks) made.checker = checker;
    const thing = new Producer(made);
    await thing.startup();
    things.set(args.name, { thing, waited });
  },
  async send(args) { return receipt(await things.get(args.name).thing.send(message(args.message))); },
  async send_many(args) {
    const { thing } = things.get(args.name);
    return (await Promise.all(args.messages.map(fields => thing.send(message(fields))))).map(sent => sent.messageId);
  },
  async send_transaction(args) {
    const { thing } = things.get(args.name);
    const transaction = thing.beginTransaction();
    const sent = await thing.send(message(args.message), transaction);
    if (args.outcome === 'COMMIT') await transaction.commit();
    if (args.outcome === 'ROLLBACK') await transaction.rollback();
    return receipt(sent);
  },
  checked: args => things.get(args.name).waited.await(args),
  async recall(args) {
    const answer = await things.get(args.name).thing.recallMessage(args.topic, args.recall_handle);
    return { message_id: answer.messageId };
  },
  async simple_start(args) {
    const thing = new SimpleConsumer({
      ...options(args), consumerGroup: args.group, subscriptions: subscriptions(args), awaitDuration: args.await_ms ?? 5000,
    });
    await thing.startup();
    things.set(args.name, { thing });
  },
  async receive(args) {
    return (await things.get(args.name).thing.receive(args.max ?? 16, args.invisible_ms)).map(shape);
  },
  async ack(args) { await things.get(args.name).thing.ack(received.get(args.number)); },
  async change_invisible(args) {
    await things.get(args.name).thing.changeInvisibleDuration(received.get(args.number), args.invisible_ms);
  },
  async push_start(args) {
    const waited = new Waited();
    const failed = new Map();
    const messageListener = {
      async consume(view) {
        const fails = failed.get(view.messageId) ?? 0;
        const fail = fails < (args.fail_first ?? 0);
        failed.set(view.messageId, fails + (fail ? 1 : 0));
        waited.push({ ...shape(view), accepted: !fail });
        await sleep(args.pause_ms ?? 0);
        return fail ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    const thing = new PushConsumer({
      ...options(args), consumerGroup: args.group, subscriptions: subscriptions(args), messageListener,
    });
    await thing.startup();
    things.set(args.name, { thing, waited });
  },
  push_await: args => things.get(args.name).waited.await(args),
  producer_stop: stop,
  simple_stop: stop,
  push_stop: stop,
};

async function answer(args) {
  let reply;
  try {
    reply = { id: args.id, result: (await commands[args.command](args)) ?? null };
  } catch (error) {
    reply = { id: args.id, error: { type: error.constructor.name, message: String(error.message), code: error.code ?? -1 } };
    if (typeof reply.error.code !== 'number') reply.error.code = -1;
  }
  process.stdout.write(JSON.stringify(reply) + '\n');
}

readline.createInterface({ input: process.stdin }).on('line', line => answer(JSON.parse(line))).on('close', () => process.exit(0));
