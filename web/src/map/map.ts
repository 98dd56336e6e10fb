/** The map: every sample a point, drawn by regl-scatterplot. */

import createScatterplot, { createSpatialIndex } from "regl-scatterplot";
import { dark, encode, grey, type Encoding } from "../colours";
import { h, perFrame, svg } from "../dom";
import { NO_ROW, type Model, type Picked } from "../model";
import { pointSize, scaled, scattered, stateOf } from "./points";
import { MapRenderer, type StateTexture } from "./renderer";

type Plot = ReturnType<typeof createScatterplot>;
/** Above this many points, the map is shown before it is known what lies under the pointer. */
export const MANY = 300_000;
/** Above this many, picked points are not also lit one by one on the map. */
const LIT_LIMIT = 200_000;
/** Below this many, picked points also get a rim. */
const OUTLINED_LIMIT = 3_000;

/** A ring is larger than a disc, or its hole would not be seen. */
const RING_MORE = 3.5;
const AFTER_LASSO_MS = 300;
/** Time for the first picture of very many points to be seen before the page is busy again. */
const AFTER_FIRST_MS = 200;
/** A frame may take so long while something moves; where it takes longer, fewer points are drawn. */
const MOVING_MS = 50;
const FEWEST = 50_000;
/** What has not moved for so long is drawn in full. */
const STILL_MS = 250;

export type Mode = "panZoom" | "lasso";

export class MapView {
  readonly element: HTMLElement;
  /** Called with a row under the pointer, or `NO_ROW`. */
  onHover: (row: number) => void = () => undefined;
  onEncoded: (encoding: Encoding) => void = () => undefined;
  /** Rows joined to the focused one by lines: its neighbours. */
  private linked: number[] = [];
  private readonly canvas: HTMLCanvasElement;
  private readonly marks = svg("svg", { class: "marks", "aria-hidden": "true" });
  /** As the plot wants them, (x, y) each; colours and states live in `state` alone. */
  private readonly points: number[][];
  private readonly state: StateTexture;
  private renderer: MapRenderer | null = null;
  private plot: Plot | null = null;
  private drawing = false;
  private stale = false;
  private lassoing = false;
  private lassoed = -Infinity;
  private waiting: (() => void)[] = [];
  private filterStale = false;
  private styled = "";
  private lit: Picked | null = null;
  /** How many points are drawn while something moves. */
  private few = Infinity;
  private still = 0;

  constructor(private readonly model: Model) {
    this.canvas = h("canvas", {
      className: "points",
      role: "img",
      "aria-label":
        "Map of the samples. Drag to move, wheel to zoom, shift and drag to lasso. The gallery lists the same samples for the keyboard.",
    });
    this.element = h("div", { className: "map" }, this.canvas, this.marks);
    this.points = scaled(model);
    this.state = stateOf(this.points);
    model.on(["decisions", "preview", "colour", "theme", "comparison", "places", "dropped"], () => this.redraw());
    model.on(["filter"], () => {
      this.filterStale = true;
      this.redraw();
    });
    model.on(["preview"], () => this.moving());
    model.on(["picked"], () => this.light());
    model.on(["focus"], () => this.mark());
  }

  /** Start drawing; the element must be in the page, since its size is read. Throws without WebGL. */
  start(): void {
    if (this.model.n === 0) return;
    this.renderer = new MapRenderer(this.canvas);
    // Before the plot's own listener, which may ask for a frame with another point lit.
    this.canvas.addEventListener("mousemove", () => this.moving());
    const many = this.model.n > MANY;
    this.plot = createScatterplot({
      renderer: this.renderer.renderer,
      canvas: this.canvas,
      width: "auto",
      height: "auto",
      colorBy: "valueA",
      opacityBy: "valueB",
      sizeBy: "valueB",
      lassoInitiator: false,
      lassoMinDelay: 8,
      lassoMinDist: 3,
      lassoColor: "#f2b632",
      deselectOnDblClick: false,
      deselectOnEscape: false,
      // A worker would be made from text, which the policy forbids.
      spatialIndexUseWorker: false,
      opacityInactiveMax: 0.25,
      pointScaleMode: "asinh",
      cameraDistance: this.distance(),
      // So that the first of them, drawn while the map moves, are a fair sample of all.
      ...(many ? { pointOrder: scattered(this.model.n) } : {}),
    });
    this.plot.subscribe("pointOver", (row) => this.onHover(row));
    this.plot.subscribe("pointOut", () => this.onHover(NO_ROW));
    this.plot.subscribe("lassoStart", () => {
      this.lassoing = true;
      this.element.classList.add("lassoing");
    });
    this.plot.subscribe("lassoEnd", () => {
      this.lassoing = false;
      this.lassoed = performance.now();
      this.element.classList.remove("lassoing");
    });
    this.plot.subscribe("select", ({ points }) => this.chosen(points));
    this.plot.subscribe("deselect", () => {
      if (this.lassoing) this.model.pick(null);
    });
    const mark = perFrame(() => this.mark());
    this.plot.subscribe("view", () => {
      mark();
      this.moving();
    });
    this.plot.subscribe("draw", mark);
    new ResizeObserver(
      perFrame(() => {
        void this.plot?.set({ width: "auto", height: "auto" });
      }),
    ).observe(this.element);
    this.filterStale = this.model.filtered;
    void this.first(this.plot, many);
  }

  setMode(mode: Mode): void {
    void this.plot?.set({ mouseMode: mode });
    this.element.classList.toggle("lasso-mode", mode === "lasso");
  }

  fit(): void {
    void this.plot?.zoomToLocation([0, 0], this.distance(), { transition: true, transitionDuration: 250 });
  }

  /** How far back the camera must stand to see the whole map; 1 shows it from top to bottom. */
  private distance(): number {
    const { width, height } = this.element.getBoundingClientRect();
    return Math.max(1, height / Math.max(width, 1));
  }

  zoomTo(rows: number[]): void {
    if (rows.length > 0) {
      void this.plot?.zoomToPoints(rows, { padding: 0.4, transition: true, transitionDuration: 350 });
    }
  }

  /** Where a sample stands in the page, in pixels from the map's corner. */
  position(row: number): [number, number] | undefined {
    if (this.plot === null || this.points[row] === undefined) return undefined;
    try {
      return this.plot.getScreenPosition(row);
    } catch {
      return undefined;
    }
  }

  link(rows: number[]): void {
    this.linked = rows;
    this.mark();
  }

  /** Resolves once what the model says is on the screen. */
  settled(): Promise<void> {
    if (!this.drawing && !this.stale) return Promise.resolve();
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  private chosen(rows: number[]): void {
    if (this.lassoing) {
      this.model.pick(rows, "lassoed");
      return;
    }
    // A click: look at that sample, and leave what was lassoed lit. Letting go of a closed lasso
    // counts as a click to the plot, but was not meant as one.
    const [row] = rows;
    if (row !== undefined && performance.now() - this.lassoed > AFTER_LASSO_MS) this.model.setFocus(row);
    this.light(true);
  }

  /** Light the picked samples up, where that is not how they are already. */
  private light(again = false): void {
    const { picked } = this.model;
    if (this.plot === null || this.drawing || (picked === this.lit && !again)) return;
    this.lit = picked;
    const few = picked !== null && picked.rows.length < OUTLINED_LIMIT;
    void this.plot.set({ pointSizeSelected: few ? 2 : 0.5, pointOutlineWidth: few ? 1.5 : 0 });
    if (picked === null || picked.rows.length > LIT_LIMIT) this.plot.deselect({ preventEvent: true });
    else this.plot.select(Array.from(picked.rows), { preventEvent: true });
  }

  private style(plot: Plot, encoding: Encoding): void {
    const key = JSON.stringify([encoding.palette, encoding.opacity, dark()]);
    if (key === this.styled) return;
    this.styled = key;
    const size = pointSize(this.model.n);
    const strong = dark() ? "#ffffff" : "#111418";
    void plot.set({
      pointColor: encoding.palette,
      // Lit points keep their colours; the others step back.
      pointColorActive: encoding.palette as never,
      pointColorHover: strong,
      pointSize: [size, size, size + 2.5, size + RING_MORE],
      opacity: encoding.opacity,
      backgroundColor: dark() ? "#14171c" : "#fbfbf9",
      reticleColor: grey(),
      showReticle: false,
    });
  }

  private redraw(): void {
    this.stale = true;
    this.element.dataset["stale"] = "true";
    if (!this.drawing) void this.draw();
  }

  /** The first picture. Of very many points, what lies under the pointer is worked out after it. */
  private async first(plot: Plot, many: boolean): Promise<void> {
    this.drawing = true;
    this.recolour(plot);
    await this.upload(plot, many ? await createSpatialIndex([], false) : undefined);
    this.drawing = false;
    await this.draw();
    if (many) {
      await new Promise((resolve) => setTimeout(resolve, AFTER_FIRST_MS));
      const index = await createSpatialIndex(this.points as [number, number][], false);
      await this.settled();
      this.drawing = true;
      await this.upload(plot, index, true);
      const { renderer } = this;
      const took = await new Promise<number>((resolve) => {
        plot.subscribe("drawing", () => resolve(renderer?.wait() ?? 0), 1);
        plot.redraw();
      });
      this.element.dataset["frameMs"] = took.toFixed(0);
      if (took > MOVING_MS) this.few = Math.max(FEWEST, Math.round((this.model.n * MOVING_MS) / took));
      this.drawing = false;
      await this.draw();
    }
    this.element.dataset["indexed"] = String(Math.min(this.few, this.model.n));
  }

  /** Draw a sample of the points until nothing has moved for a while, where all would take too long. */
  private moving(): void {
    const { plot, renderer } = this;
    if (plot === null || renderer === null || this.few === Infinity) return;
    renderer.limit = this.few;
    this.element.dataset["thinned"] = "true";
    window.clearTimeout(this.still);
    this.still = window.setTimeout(() => {
      renderer.limit = Infinity;
      delete this.element.dataset["thinned"];
      plot.redraw();
    }, STILL_MS);
  }

  /** Give the plot all points; takes the longer, the more they are. */
  private async upload(plot: Plot, index?: ArrayBuffer, again = false): Promise<void> {
    this.renderer?.take(this.state);
    await plot.draw(this.points, {
      zDataType: "categorical",
      wDataType: "categorical",
      preventFilterReset: again,
      ...(index === undefined ? {} : { spatialIndex: index }),
    });
  }

  /** Put the model's colours and states into the texture's rows. */
  private recolour(plot: Plot): void {
    const encoding = encode(this.model);
    this.onEncoded(encoding);
    const { index, state } = encoding;
    const { data } = this.state;
    for (let i = 0, at = 2; i < this.model.n; i++, at += 4) {
      data[at] = index[i] ?? 0;
      data[at + 1] = state[i] ?? 0;
    }
    // Not awaited: it would wait for a frame of its own before the one that shows the points.
    this.style(plot, encoding);
  }

  private async draw(): Promise<void> {
    const plot = this.plot;
    if (plot === null) {
      this.onEncoded(encode(this.model));
      this.stale = false;
      return;
    }
    this.drawing = true;
    let refiltered = false;
    while (this.stale) {
      this.stale = false;
      this.recolour(plot);
      const refilter = this.filterStale || (this.model.show !== "all" && this.model.filtered);
      this.filterStale = false;
      refiltered ||= refilter;
      this.renderer?.send(this.state);
      if (!refilter) await drawn(plot);
      else if (this.model.filtered) await plot.filter(this.model.passing(), { preventEvent: true });
      else await plot.unfilter({ preventEvent: true });
    }
    this.drawing = false;
    this.light(refiltered);
    this.element.dataset["drawn"] = "true";
    delete this.element.dataset["stale"];
    for (const resolve of this.waiting.splice(0)) resolve();
  }

  /** A ring around the sample in focus and lines to its neighbours, above the points. */
  private mark(): void {
    const at = this.model.focus === NO_ROW ? undefined : this.position(this.model.focus);
    if (at === undefined) {
      this.marks.replaceChildren();
      return;
    }
    const [cx, cy] = at;
    const lines = this.linked.flatMap((row) => {
      const to = this.position(row);
      if (to === undefined) return [];
      return [
        svg("line", { x1: cx, y1: cy, x2: to[0], y2: to[1] }),
        svg("circle", { cx: to[0], cy: to[1], r: 4, class: "near" }),
      ];
    });
    this.marks.replaceChildren(...lines, svg("circle", { cx, cy, r: 9, class: "ring" }));
  }
}

/** Resolves in the frame that shows what was last sent. */
function drawn(plot: Plot): Promise<void> {
  return new Promise((resolve) => {
    plot.subscribe("drawing", () => resolve(), 1);
    plot.redraw();
  });
}
