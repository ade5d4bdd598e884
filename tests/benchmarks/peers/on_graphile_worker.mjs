// graphile-worker: a local queue of 500 jobs, 24 at a time, ended together. It deletes what has
// ended and keeps no results.

import { Logger, WorkerPreset, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

import { main, noted, ran } from "./common.mjs";

const connectionString = process.env.DATABASE_URL;
const logger = new Logger(() => () => {});
let utils, pool;

await main({
  most: 30_000,

  async prepare() {
    pool = new pg.Pool({ connectionString, max: 1 });
    utils = await makeWorkerUtils({ connectionString, logger });
    await utils.migrate();
  },

  enqueue: (name, data) => utils.addJob(name, data),

  async enqueueMany(count) {
    for (let start = 0; start < count; start += 5_000) {
      const size = Math.min(5_000, count - start);
      const jobs = Array.from({ length: size }, (_, n) => ({
        identifier: "nothing",
        payload: { n: start + n },
      }));
      await utils.addJobs(jobs);
    }
  },

  async left() {
    const found = await pool.query("SELECT count(*)::int AS n FROM graphile_worker._private_jobs");
    return found.rows[0].n;
  },

  async work() {
    const runner = await run({
      connectionString,
      logger,
      taskList: { nothing: ran, clock: ({ key }) => noted(key) },
      preset: {
        extends: [WorkerPreset],
        worker: {
          connectionString,
          logger,
          concurrentJobs: 24,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    });
    await runner.promise;
  },
});
