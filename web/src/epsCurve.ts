/** The share dropped as a function of eps: a chart on which eps can be dragged. */

import { brief, setAttributes, svg } from "./dom";

const [WIDTH, HEIGHT] = [248, 84];
const FLOOR = HEIGHT - 14;
export const EPS_STEPS = 1000;

export class EpsCurve {
  readonly element = svg("svg", { class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Share dropped against eps" });
  private readonly line = svg("line", { class: "marker", y1: 4, y2: FLOOR });
  private readonly dot = svg("circle", { class: "marker", r: 4.5 });
  private readonly marker = svg("g", { class: "markers" }, this.line, this.dot);
  private low = 1;
  private high = 1;

  /** `onDrag` receives a step of the slider, 0 to `EPS_STEPS`. */
  constructor(onDrag: (step: number) => void) {
    const drag = (event: PointerEvent): void => {
      const box = this.element.getBoundingClientRect();
      const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      onDrag(Math.round(EPS_STEPS * share));
    };
    const onpointerdown = (event: PointerEvent): void => {
      this.element.setPointerCapture(event.pointerId);
      drag(event);
    };
    setAttributes(this.element, { onpointerdown, onpointermove: (event: PointerEvent) => (event.buttons ? drag(event) : undefined) });
  }

  /** Whether every eps drops the same: all classes are smaller than min samples. */
  get flat(): boolean {
    return this.high <= this.low;
  }

  draw(curve: { eps: number[]; share: number[] } | undefined): void {
    const points = (curve?.eps ?? []).map((eps, n) => [eps, curve?.share[n] ?? 0] as const).filter(([eps]) => eps > 0);
    this.low = points[0]?.[0] ?? 1;
    this.high = points[points.length - 1]?.[0] ?? 1;
    const line = points.map(([eps, share]) => `${this.x(eps).toFixed(1)},${y(share).toFixed(1)}`).join(" ");
    this.element.replaceChildren(
      svg("line", { x1: 0, x2: WIDTH, y1: FLOOR, y2: FLOOR, class: "axis" }),
      svg("polygon", { points: `0,${FLOOR} 0,${y(1)} ${line} ${WIDTH},${FLOOR}`, class: "area" }),
      svg("polyline", { points: line, class: "line" }),
      svg("text", { x: 2, y: HEIGHT - 3 }, `eps ${brief(this.low)}`),
      svg("text", { x: WIDTH - 2, y: HEIGHT - 3, "text-anchor": "end" }, brief(this.high)),
      svg("text", { x: WIDTH - 2, y: 10, "text-anchor": "end" }, "share dropped"),
      this.marker,
    );
  }

  mark(eps: number | undefined, share: number): void {
    const shown = eps !== undefined && eps > 0;
    this.marker.classList.toggle("away", !shown);
    if (!shown) return;
    const x = Math.max(0, Math.min(WIDTH, this.x(eps)));
    setAttributes(this.line, { x1: x, x2: x });
    setAttributes(this.dot, { cx: x, cy: y(share) });
  }

  /** The slider has a logarithmic scale from the lowest to the highest eps of the curve. */
  epsAt(step: number): number {
    return this.low * (this.high / this.low) ** (step / EPS_STEPS);
  }

  stepAt(eps: number): number {
    if (this.flat || eps <= this.low) return 0;
    return Math.round((EPS_STEPS * Math.log(eps / this.low)) / Math.log(this.high / this.low));
  }

  private x(eps: number): number {
    return (this.stepAt(eps) / EPS_STEPS) * WIDTH;
  }
}

function y(share: number): number {
  return 8 + (1 - share) * (HEIGHT - 22);
}
