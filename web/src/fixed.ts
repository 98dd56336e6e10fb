/** The data of a static export: plain files, nothing can be changed. */

import type { Table } from "apache-arrow";
import { bytes, meta, numbers, read } from "./arrow";
import {
  Refused,
  type Comparison,
  type Info,
  type KnobsInfo,
  type LogEntry,
  type Masks,
  type Preview,
  type SampleDetail,
  type Settings,
  type Sheet,
  type Source,
} from "./source";

interface Exported extends Info {
  knobs: KnobsInfo;
  compare: Record<string, string>;
  log: LogEntry[];
}

const SHEETS_KEPT = 128;

export class FixedSource implements Source {
  readonly live = false;
  readonly decide = readOnly;
  readonly undo = readOnly;
  readonly redo = readOnly;
  readonly use = readOnly;
  private readonly described: Promise<Exported>;
  private readonly table: Promise<Table>;
  private readonly pictures = new Map<number, Promise<ImageBitmap>>();

  constructor() {
    this.described = get("info.json").then((response) => response.json() as Promise<Exported>);
    this.table = get("points.arrow").then(async (response) => read(await response.arrayBuffer()));
  }

  info(): Promise<Info> {
    return this.described;
  }

  points(): Promise<Table> {
    return this.table;
  }

  async state(): Promise<Masks> {
    const table = await this.table;
    return { keep: bytes(table, "decided"), overruled: bytes(table, "overruled"), undo: 0, redo: 0 };
  }

  async knobs(): Promise<KnobsInfo> {
    const { knobs } = await this.described;
    const methods = Object.fromEntries(
      Object.entries(knobs.methods).filter(([name]) => name === "network" || name === "score"),
    );
    return { ...knobs, methods };
  }

  async places(): Promise<Int16Array | null> {
    return numbers<Int16Array>(await this.table, "place");
  }

  /** Each sample's threshold is in the export: it is noise where eps is below it. */
  async preview(settings: Settings): Promise<Preview> {
    const begun = performance.now();
    const [table, info] = await Promise.all([this.table, this.described]);
    const labels = numbers<Int16Array>(table, "label") ?? new Int16Array();
    const n = table.numRows;
    const by =
      settings.method === "network" ? numbers<Float64Array>(table, "threshold") : numbers<Float32Array>(table, "score");
    if (by === null) throw new Refused("this export has no thresholds");
    const limit = settings.eps !== undefined && settings.method === "network" ? settings.eps : quantile(by, settings.share ?? 0);
    const keep = new Uint8Array(n);
    const dropped = new Array<number>(info.classes.length).fill(0);
    let total = 0;
    for (let i = 0; i < n; i++) {
      const label = labels[i] ?? 0;
      const eps = settings.knee ? (info.knobs.knee?.[String(label)] ?? limit) : limit;
      if (eps < (by[i] ?? 0)) {
        dropped[label] = (dropped[label] ?? 0) + 1;
        total++;
      } else keep[i] = 1;
    }
    const now = performance.now();
    return {
      times: { sent: begun, answered: now, decoded: now },
      keep,
      cluster: null,
      numbers: {
        method: settings.method,
        dropped: total,
        share: n ? total / n : 0,
        dropped_per_class: dropped,
        milliseconds: performance.now() - begun,
        ...(settings.method === "network" ? { eps: limit, min_samples: info.knobs.min_samples } : {}),
      },
    };
  }

  async compare(other: string): Promise<Comparison> {
    const file = (await this.described).compare[other];
    if (file === undefined) throw new Refused(`this export does not hold ${other}`);
    const table = read(await (await get(file)).arrayBuffer());
    return { keep: bytes(table, "keep"), held: bytes(table, "held"), numbers: meta(table) };
  }

  async log(): Promise<LogEntry[]> {
    return (await this.described).log;
  }

  async sample(): Promise<SampleDetail> {
    return { override: null };
  }

  imageUrl(): null {
    return null;
  }

  async sheet(rows: number[]): Promise<Sheet[]> {
    const [info, table] = await Promise.all([this.described, this.table]);
    const slot = numbers<Int32Array>(table, "slot") ?? new Int32Array();
    const wanted = new Map<number, number[]>();
    for (const row of rows) {
      const sheet = Math.floor((slot[row] ?? 0) / info.sprite_limit);
      wanted.set(sheet, [...(wanted.get(sheet) ?? []), row]);
    }
    return Promise.all(
      [...wanted].map(async ([sheet, its]) => ({
        rows: its,
        bitmap: await this.picture(sheet),
        slots: its.map((row) => (slot[row] ?? 0) % info.sprite_limit),
      })),
    );
  }

  private picture(sheet: number): Promise<ImageBitmap> {
    let found = this.pictures.get(sheet);
    if (found === undefined) {
      found = get(`sprites/${sheet}.webp`).then(async (response) => createImageBitmap(await response.blob()));
      this.pictures.set(sheet, found);
      const oldest = this.pictures.keys().next().value;
      if (this.pictures.size > SHEETS_KEPT && oldest !== undefined) this.pictures.delete(oldest);
    }
    return found;
  }

  listen(): void {
    // Nothing changes in an export.
  }

  pageFor(): string {
    return "";
  }
}

async function get(file: string): Promise<Response> {
  const response = await fetch(`./data/${file}`);
  if (!response.ok) throw new Refused(`${file} is missing from this export`);
  return response;
}

function readOnly(): Promise<never> {
  return Promise.reject(new Refused("this is an export: it cannot be changed"));
}

/** The value that `share` of the values exceed. */
function quantile(values: ArrayLike<number>, share: number): number {
  const sorted = Float64Array.from(values).sort();
  const kept = sorted.length - Math.round(share * sorted.length);
  return kept > 0 ? (sorted[kept - 1] ?? 0) : -Infinity;
}
