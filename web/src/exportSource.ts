/** Data of a static export: plain files, read-only. */

import type { Table } from "apache-arrow";
import { bytes, metadata, numbers, read } from "./arrow";
import { RequestError } from "./dataSource";
import type { Comparison, DataSource, Decisions, FilterInfo, FilterSettings, Info } from "./dataSource";
import type { LogEntry, Preview, SampleDetail, ThumbnailSheet } from "./dataSource";

interface ExportInfo extends Info {
  knobs: FilterInfo;
  compare: Record<string, string>;
  log: LogEntry[];
}

const CACHED_SHEETS = 128;

export class ExportSource implements DataSource {
  readonly live = false;
  readonly decide = readOnly;
  readonly undo = readOnly;
  readonly redo = readOnly;
  readonly saveSelection = readOnly;
  private readonly description = get("info.json").then((response) => response.json() as Promise<ExportInfo>);
  private readonly table = getTable("points.arrow");
  private readonly sheets = new Map<number, Promise<ImageBitmap>>();

  info(): Promise<Info> {
    return this.description;
  }

  points(): Promise<Table> {
    return this.table;
  }

  async decisions(): Promise<Decisions> {
    const table = await this.table;
    return { keep: bytes(table, "decided"), overridden: bytes(table, "overruled"), undo: 0, redo: 0 };
  }

  async filterInfo(): Promise<FilterInfo> {
    const { knobs } = await this.description;
    const methods = Object.entries(knobs.methods).filter(([name]) => name === "network" || name === "score");
    return { ...knobs, methods: Object.fromEntries(methods) };
  }

  async neighbourhoodLabels(): Promise<Int16Array | null> {
    return numbers<Int16Array>(await this.table, "place");
  }

  /** A sample is noise if eps is below its threshold, which the export contains. */
  async preview({ method, eps, share, knee }: FilterSettings): Promise<Preview> {
    const sent = performance.now();
    const [table, info] = await Promise.all([this.table, this.description]);
    const labels = numbers<Int16Array>(table, "label") ?? new Int16Array();
    const values = numbers<Float64Array>(table, method === "network" ? "threshold" : "score");
    if (values === null) throw new RequestError("This export contains no thresholds.");
    const limit = method === "network" && eps !== undefined ? eps : quantile(values, share ?? 0);
    const keep = new Uint8Array(table.numRows);
    let dropped = 0;
    for (let row = 0; row < keep.length; row++) {
      const used = knee ? (info.knobs.knee?.[String(labels[row])] ?? limit) : limit;
      keep[row] = Number(used >= (values[row] ?? 0));
      dropped += 1 - (keep[row] ?? 0);
    }
    const answered = performance.now();
    return {
      times: { sent, answered, decoded: answered },
      keep,
      cluster: null,
      numbers: {
        dropped,
        share: keep.length ? dropped / keep.length : 0,
        milliseconds: answered - sent,
        ...(method === "network" && !knee ? { eps: limit } : {}),
      },
    };
  }

  async compare(other: string): Promise<Comparison> {
    const file = (await this.description).compare[other];
    if (file === undefined) throw new RequestError(`This export does not contain ${other}.`);
    const table = await getTable(file);
    return { keep: bytes(table, "keep"), held: bytes(table, "held"), numbers: metadata(table) };
  }

  async log(): Promise<LogEntry[]> {
    return (await this.description).log;
  }

  async sample(): Promise<SampleDetail> {
    return { override: null };
  }

  imageUrl(): null {
    return null;
  }

  async thumbnails(rows: number[]): Promise<ThumbnailSheet[]> {
    const [{ sprite_limit: size }, table] = await Promise.all([this.description, this.table]);
    const slots = numbers<Int32Array>(table, "slot") ?? new Int32Array();
    const rowsBySheet = Map.groupBy(rows, (row) => Math.floor((slots[row] ?? 0) / size));
    return Promise.all(
      [...rowsBySheet].map(async ([sheet, its]) => ({
        rows: its,
        bitmap: await this.sheet(sheet),
        slots: its.map((row) => (slots[row] ?? 0) % size),
      })),
    );
  }

  subscribe(): void {
    // Nothing changes in an export.
  }

  pageUrl(): string {
    return "";
  }

  private sheet(number: number): Promise<ImageBitmap> {
    let bitmap = this.sheets.get(number);
    if (bitmap === undefined) {
      bitmap = get(`sprites/${number}.webp`).then(async (response) => createImageBitmap(await response.blob()));
      this.sheets.set(number, bitmap);
      const [oldest] = this.sheets.keys();
      if (this.sheets.size > CACHED_SHEETS && oldest !== undefined) this.sheets.delete(oldest);
    }
    return bitmap;
  }
}

async function get(file: string): Promise<Response> {
  const response = await fetch(`./data/${file}`);
  if (!response.ok) throw new RequestError(`The file ${file} is missing from this export.`);
  return response;
}

async function getTable(file: string): Promise<Table> {
  return read(await (await get(file)).arrayBuffer());
}

function readOnly(): Promise<never> {
  return Promise.reject(new RequestError("This export is read-only."));
}

/** The value that `share` of the values exceed. */
function quantile(values: ArrayLike<number>, share: number): number {
  const sorted = Float64Array.from(values).sort();
  const kept = sorted.length - Math.round(share * sorted.length);
  return kept > 0 ? (sorted[kept - 1] ?? 0) : -Infinity;
}
