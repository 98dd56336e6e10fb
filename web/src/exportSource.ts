/** Data of a static export: plain files, read-only. */

import type { Table } from "apache-arrow";
import { bytes, comparison, copyLinks, numbers, read } from "./arrow";
import { RequestError, type Comparison, type CopyLinks, type DataSource, type Decisions, type FilterInfo, type FilterSettings, type Info, type LogEntry, type Preview, type SampleDetail, type ThumbnailSheet } from "./dataSource";
import { groupBy } from "./sorting";

interface ExportInfo extends Info {
  knobs: FilterInfo;
  /** The eps of each step of the share slider. */
  eps_by_share?: number[];
  compare: Record<string, string>;
  log: LogEntry[];
}

const CACHED_SHEETS = 128;
/** Steps of the share slider per 1; the export contains what each of them drops. */
const SHARE_STEPS = 1000;

export class ExportSource implements DataSource {
  readonly live = false;
  readonly decide = readOnly;
  readonly undo = readOnly;
  readonly redo = readOnly;
  readonly saveSelection = readOnly;
  private readonly description = get("info.json").then((response) => response.json() as Promise<ExportInfo>);
  private readonly table = getTable("points.arrow");
  private readonly sheets = new Map<number, Promise<ImageBitmap>>();

  readonly info = (): Promise<Info> => this.description;
  readonly points = (): Promise<Table> => this.table;
  readonly neighbourhoodLabels = async (): Promise<Int16Array | null> => numbers<Int16Array>(await this.table, "place");
  readonly copies = async (): Promise<CopyLinks> => copyLinks(await getTable("copies.arrow"));
  readonly log = async (): Promise<LogEntry[]> => (await this.description).log;
  readonly sample = async (): Promise<SampleDetail> => ({ override: null });
  readonly imageUrl = (): null => null;
  /** An export shows one selection. */
  readonly open = (): void => undefined;
  /** Nothing changes in an export. */
  readonly subscribe = (): void => undefined;

  async decisions(): Promise<Decisions> {
    const table = await this.table;
    return { keep: bytes(table, "decided"), overridden: bytes(table, "overruled"), newLabel: numbers(table, "relabel"), undo: 0, redo: 0 };
  }

  async filterInfo(): Promise<FilterInfo> {
    const { knobs } = await this.description;
    const methods = Object.entries(knobs.methods).filter(([name]) => name === "network" || name === "score");
    return { ...knobs, methods: Object.fromEntries(methods) };
  }

  /** Look up what Python has computed: nothing is decided here. */
  async preview({ method, eps, share, knee }: FilterSettings): Promise<Preview> {
    const sent = performance.now();
    const [table, { eps_by_share: epsByShare, knobs }] = await Promise.all([this.table, this.description]);
    const step = Math.round((share ?? 0) * SHARE_STEPS);
    const limit = eps ?? epsByShare?.[step] ?? 0;
    const labels = numbers<Int16Array>(table, "label") ?? new Int16Array();
    const thresholds = numbers<Float64Array>(table, "threshold");
    const dropSteps = numbers<Uint16Array>(table, "drop_step");
    const isKept = {
      network: (row: number) => (thresholds?.[row] ?? 0) <= (knee ? (knobs.knee?.[String(labels[row])] ?? 0) : limit),
      score: (row: number) => step < (dropSteps?.[row] ?? 0),
    }[method];
    if (isKept === undefined) throw new RequestError(`This export cannot preview the method ${method}.`);
    const keep = new Uint8Array(table.numRows).map((_, row) => Number(isKept(row)));
    const dropped = keep.reduce((sum, kept) => sum - kept, keep.length);
    const answered = performance.now();
    const numbersOf = { dropped, share: keep.length ? dropped / keep.length : 0, milliseconds: answered - sent };
    const times = { sent, answered, decoded: answered };
    return { times, keep, cluster: null, numbers: method === "network" && !knee ? { ...numbersOf, eps: limit } : numbersOf };
  }

  async compare(other: string): Promise<Comparison> {
    const file = (await this.description).compare[other];
    if (file === undefined) throw new RequestError(`This export does not contain ${other}.`);
    return comparison(await getTable(file));
  }

  async thumbnails(rows: number[]): Promise<ThumbnailSheet[]> {
    const [{ sprite_limit: size }, table] = await Promise.all([this.description, this.table]);
    const slots = numbers<Int32Array>(table, "slot") ?? new Int32Array();
    // Images outside of the selection come after its samples.
    const slot = (row: number): number => slots[row] ?? row;
    const sheets = groupBy(rows, (row) => Math.floor(slot(row) / size));
    return Promise.all(sheets.map(async ([sheet, its]) => ({ rows: its, bitmap: await this.sheet(sheet), slots: its.map((row) => slot(row) % size) })));
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
