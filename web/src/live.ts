/** The data of a running `thresher view`. */

import type { Table } from "apache-arrow";
import { bytes, encodeIds, meta, numbers, read } from "./arrow";
import {
  Refused,
  type Comparison,
  type Info,
  type KnobsInfo,
  type LogEntry,
  type Masks,
  type News,
  type Preview,
  type PreviewNumbers,
  type SampleDetail,
  type Settings,
  type Sheet,
  type Source,
} from "./source";

const ARROW = "application/vnd.apache.arrow.stream";

export class LiveSource implements Source {
  readonly live = true;
  private readonly token: string;
  private readonly selection: string | null;

  constructor(address: URL) {
    this.token = address.searchParams.get("token") ?? "";
    this.selection = address.searchParams.get("s");
  }

  info(): Promise<Info> {
    return this.json("info");
  }

  async points(): Promise<Table> {
    return read(await this.binary("points"));
  }

  async state(): Promise<Masks> {
    return masks(read(await this.binary("state")));
  }

  knobs(minSamples?: number): Promise<KnobsInfo> {
    return this.json("knobs", minSamples === undefined ? {} : { min_samples: String(minSamples) });
  }

  async places(): Promise<Int16Array | null> {
    return numbers<Int16Array>(read(await this.binary("places")), "place");
  }

  async preview(settings: Settings, clusters: boolean): Promise<Preview> {
    const body = JSON.stringify({ ...settings, clusters });
    const sent = performance.now();
    const raw = await this.binary("preview", {}, { method: "POST", body });
    const answered = performance.now();
    const table = read(raw);
    const keep = bytes(table, "keep");
    return {
      times: { sent, answered, decoded: performance.now() },
      keep,
      cluster: numbers<Int32Array>(table, "cluster"),
      numbers: meta<PreviewNumbers>(table),
    };
  }

  async compare(other: string): Promise<Comparison> {
    const table = read(await this.binary("compare", { with: other }));
    return { keep: bytes(table, "keep"), held: bytes(table, "held"), numbers: meta(table) };
  }

  async log(): Promise<LogEntry[]> {
    return (await this.json<{ entries: LogEntry[] }>("log")).entries;
  }

  sample(id: string, neighbours: number): Promise<SampleDetail> {
    return this.json(`sample/${encodeURIComponent(id)}`, { neighbours: String(neighbours) });
  }

  imageUrl(id: string): string {
    // An <img> cannot send a header, so the token goes into the address.
    return this.address(`image/${encodeURIComponent(id)}`, { token: this.token });
  }

  async sheet(rows: number[]): Promise<Sheet[]> {
    const response = await this.fetch("sprite", { rows: rows.join(",") });
    const bitmap = await createImageBitmap(await response.blob());
    return [{ rows, bitmap, slots: rows.map((_, n) => n) }];
  }

  async decide(ids: string[], keep: boolean, reason: string): Promise<Masks> {
    const body = encodeIds(ids, { keep, reason }) as Uint8Array<ArrayBuffer>;
    const headers = { "Content-Type": ARROW };
    return masks(read(await this.binary("overrides", {}, { method: "POST", body, headers })));
  }

  async undo(): Promise<Masks> {
    return masks(read(await this.binary("undo", {}, { method: "POST" })));
  }

  async redo(): Promise<Masks> {
    return masks(read(await this.binary("redo", {}, { method: "POST" })));
  }

  async use(settings: Settings, name: string): Promise<{ selection: string; path: string }> {
    const body = JSON.stringify({ ...settings, name });
    return (await (await this.fetch("use", {}, { method: "POST", body })).json()) as {
      selection: string;
      path: string;
    };
  }

  listen(heard: (news: News) => void, connected: (yes: boolean) => void): void {
    const stream = new EventSource(this.address("events", { token: this.token }));
    stream.onopen = () => connected(true);
    stream.onerror = () => connected(false);
    stream.onmessage = (event: MessageEvent<string>) => {
      const news = JSON.parse(event.data) as News;
      if (news.type === "closing") {
        stream.close();
        connected(false);
      } else heard(news);
    };
  }

  pageFor(selection: string): string {
    return `?${new URLSearchParams({ token: this.token, s: selection }).toString()}`;
  }

  private address(path: string, query: Record<string, string> = {}): string {
    const parameters = new URLSearchParams(query);
    if (this.selection !== null) parameters.set("s", this.selection);
    return `./api/${path}?${parameters.toString()}`;
  }

  private async fetch(path: string, query: Record<string, string> = {}, init: RequestInit = {}): Promise<Response> {
    const headers = { ...(init.headers as Record<string, string>), Authorization: `Bearer ${this.token}` };
    let response: Response;
    try {
      response = await fetch(this.address(path, query), { ...init, headers });
    } catch {
      throw new Refused("the server does not answer: is `thresher view` still running?");
    }
    if (!response.ok) {
      const said = (await response.json().catch(() => ({}))) as { error?: string };
      throw new Refused(said.error ?? `the server answered ${response.status}`);
    }
    return response;
  }

  private async json<T>(path: string, query: Record<string, string> = {}): Promise<T> {
    return (await (await this.fetch(path, query)).json()) as T;
  }

  private async binary(path: string, query: Record<string, string> = {}, init: RequestInit = {}): Promise<ArrayBuffer> {
    return (await this.fetch(path, query, init)).arrayBuffer();
  }
}

function masks(table: Table): Masks {
  const { undo, redo } = meta<{ undo: number; redo: number }>(table);
  return { keep: bytes(table, "keep"), overruled: bytes(table, "overruled"), undo, redo };
}
