/** Data of a running `thresher view`. */

import type { Table } from "apache-arrow";
import { bytes, comparison, copyLinks, encodeIds, metadata, numbers, read } from "./arrow";
import { RequestError, type Comparison, type CopyLinks, type DataSource, type Decisions, type FilterInfo, type FilterSettings, type Info, type LogEntry, type Preview, type SampleDetail, type ServerEvent, type ThumbnailSheet } from "./dataSource";

const POST = { method: "POST" };

type Query = Record<string, string>;

export class ServerSource implements DataSource {
  readonly live = true;
  private readonly token: string;
  private readonly selection: string | null;

  constructor(url: URL) {
    this.token = url.searchParams.get("token") ?? "";
    this.selection = url.searchParams.get("s");
  }

  readonly info = (): Promise<Info> => this.json("info");
  readonly points = (): Promise<Table> => this.table("points");
  readonly decisions = async (): Promise<Decisions> => decisions(await this.table("state"));
  readonly filterInfo = (minSamples?: number): Promise<FilterInfo> => this.json("knobs", minSamples === undefined ? {} : { min_samples: String(minSamples) });
  readonly neighbourhoodLabels = async (): Promise<Int16Array | null> => numbers<Int16Array>(await this.table("places"), "place");
  readonly compare = async (other: string): Promise<Comparison> => comparison(await this.table("compare", { with: other }));
  readonly copies = async (): Promise<CopyLinks> => copyLinks(await this.table("copies"));
  readonly log = async (): Promise<LogEntry[]> => (await this.json<{ entries: LogEntry[] }>("log")).entries;
  readonly sample = (id: string, neighbours: number): Promise<SampleDetail> => this.json(`sample/${encodeURIComponent(id)}`, { neighbours: String(neighbours) });
  readonly undo = async (): Promise<Decisions> => decisions(await this.table("undo", {}, POST));
  readonly redo = async (): Promise<Decisions> => decisions(await this.table("redo", {}, POST));
  readonly saveSelection = (settings: FilterSettings, name: string): Promise<{ selection: string; path: string }> =>
    this.json("use", {}, { ...POST, body: JSON.stringify({ ...settings, name }) });
  /** An <img> cannot send a header, so the token is part of the URL. */
  readonly imageUrl = (id: string): string => this.url(`image/${encodeURIComponent(id)}`, { token: this.token });

  async preview(settings: FilterSettings, clusters: boolean): Promise<Preview> {
    const sent = performance.now();
    const response = await this.fetch("preview", {}, { ...POST, body: JSON.stringify({ ...settings, clusters }) });
    const data = await response.arrayBuffer();
    const answered = performance.now();
    const table = read(data);
    const keep = bytes(table, "keep");
    const times = { sent, answered, decoded: performance.now() };
    return { times, keep, cluster: numbers<Int32Array>(table, "cluster"), numbers: metadata(table) };
  }

  async thumbnails(rows: number[]): Promise<ThumbnailSheet[]> {
    const response = await this.fetch("sprite", { rows: rows.join(",") });
    return [{ rows, bitmap: await createImageBitmap(await response.blob()), slots: [...rows.keys()] }];
  }

  async decide(ids: string[], keep: boolean, reason: string, label: number | null): Promise<Decisions> {
    const body = encodeIds(ids, { keep, reason, label }) as Uint8Array<ArrayBuffer>;
    const headers = { "Content-Type": "application/vnd.apache.arrow.stream" };
    return decisions(await this.table("overrides", {}, { ...POST, body, headers }));
  }

  subscribe(onEvent: (event: ServerEvent) => void, onConnection: (connected: boolean) => void): void {
    const stream = new EventSource(this.url("events", { token: this.token }));
    stream.onopen = () => onConnection(true);
    stream.onerror = () => onConnection(false);
    stream.onmessage = (message: MessageEvent<string>) => {
      const event = JSON.parse(message.data) as ServerEvent;
      if (event.type === "closing") {
        stream.close();
        onConnection(false);
      } else onEvent(event);
    };
  }

  open(selection: string): void {
    // A notebook has no address to go to: its frame listens, and opens the selection itself.
    if (!dispatchEvent(new CustomEvent("open-selection", { detail: selection, cancelable: true }))) return;
    location.assign(`?${new URLSearchParams({ token: this.token, s: selection }).toString()}`);
  }

  private url(path: string, query: Query): string {
    const parameters = new URLSearchParams(query);
    if (this.selection !== null) parameters.set("s", this.selection);
    return `./api/${path}?${parameters.toString()}`;
  }

  private async fetch(path: string, query: Query = {}, init: RequestInit = {}): Promise<Response> {
    const headers = { ...(init.headers as Query), Authorization: `Bearer ${this.token}` };
    const response = await fetch(this.url(path, query), { ...init, headers }).catch(() => {
      throw new RequestError("The server does not answer. Is `thresher view` still running?");
    });
    if (response.ok) return response;
    const answer = (await response.json().catch(() => ({}))) as { error?: string };
    throw new RequestError(answer.error ?? `The server answered with status ${response.status}.`);
  }

  private async json<T>(path: string, query: Query = {}, init: RequestInit = {}): Promise<T> {
    return (await (await this.fetch(path, query, init)).json()) as T;
  }

  private async table(path: string, query: Query = {}, init: RequestInit = {}): Promise<Table> {
    return read(await (await this.fetch(path, query, init)).arrayBuffer());
  }
}

function decisions(table: Table): Decisions {
  const counts = metadata<Pick<Decisions, "undo" | "redo" | "moved">>(table);
  return { ...counts, keep: bytes(table, "keep"), overridden: bytes(table, "overruled"), newLabel: numbers(table, "label") };
}
