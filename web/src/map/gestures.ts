/** Mouse, pen and fingers on the map: move, zoom, click, hover, lasso. Nothing moves on by itself. */

/** A press that moves less than this is a click. */
const CLICK_PX = 4;
/** Corners of a lasso are at least so far apart. */
const LASSO_PX = 3;
const ZOOM_PER_PX = 0.0016;
const LINE_PX = 16;
const PAGE_PX = 400;

export type Mode = "pan" | "lasso";
export type Spot = [left: number, top: number];

export interface GestureHandlers {
  pan(dx: number, dy: number): void;
  /** Zoom to what lies under (left, top). A step of a mouse wheel is a jump, a pinch is not. */
  zoom(left: number, top: number, factor: number, jump: boolean): void;
  hover(spot: Spot | null): void;
  click(spot: Spot): void;
  /** A corner of the lasso was added. */
  lassoMove(polygon: Spot[]): void;
  /** The lasso is closed, or given up (null). */
  lassoEnd(polygon: Spot[] | null): void;
}

export class Gestures {
  mode: Mode = "pan";
  private readonly pressed = new Map<number, Spot>();
  private lasso: Spot[] | null = null;
  /** The press is a click until it moves. */
  private start: Spot | null = null;

  constructor(
    private readonly element: HTMLElement,
    private readonly handlers: GestureHandlers,
  ) {
    element.addEventListener("pointerdown", (event) => this.down(event));
    element.addEventListener("pointermove", (event) => this.move(event));
    element.addEventListener("pointerup", (event) => this.up(event));
    element.addEventListener("pointercancel", (event) => this.cancel(event));
    element.addEventListener("pointerleave", () => {
      if (this.pressed.size === 0) handlers.hover(null);
    });
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.lasso !== null) this.endLasso(false);
    });
  }

  private down(event: PointerEvent): void {
    if (event.button !== 0) return;
    const spot = this.spot(event);
    capture(this.element, event.pointerId);
    this.pressed.set(event.pointerId, spot);
    this.handlers.hover(null);
    if (this.pressed.size > 1) {
      this.start = null;
      if (this.lasso !== null) this.endLasso(false);
      return;
    }
    this.start = spot;
    if (this.mode === "lasso" || event.shiftKey) this.lasso = [spot];
  }

  private move(event: PointerEvent): void {
    const spot = this.spot(event);
    const before = this.pressed.get(event.pointerId);
    if (before === undefined) {
      if (this.pressed.size === 0) this.handlers.hover(spot);
      return;
    }
    if (this.start !== null && distance(this.start, spot) < CLICK_PX) return;
    this.start = null;
    if (this.lasso !== null) this.extend(event);
    else if (this.pressed.size === 1) this.handlers.pan(spot[0] - before[0], spot[1] - before[1]);
    else this.pinch(event.pointerId, before, spot);
    this.pressed.set(event.pointerId, spot);
  }

  private up(event: PointerEvent): void {
    if (!this.pressed.delete(event.pointerId)) return;
    if (this.start !== null) {
      this.lasso = null;
      this.handlers.click(this.start);
    } else if (this.lasso !== null) this.endLasso(true);
    this.start = null;
  }

  private cancel(event: PointerEvent): void {
    if (this.pressed.delete(event.pointerId) && this.lasso !== null) this.endLasso(false);
    this.start = null;
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    const [left, top] = this.spot(event);
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE_PX : event.deltaMode === WheelEvent.DOM_DELTA_PAGE ? PAGE_PX : 1;
    // A pinch on a touchpad comes as small turns of the wheel with the control key.
    const delta = event.deltaY * unit * (event.ctrlKey ? 5 : 1);
    this.handlers.zoom(left, top, Math.exp(-delta * ZOOM_PER_PX), !event.ctrlKey && Math.abs(delta) > 40);
  }

  private extend(event: PointerEvent): void {
    const { lasso } = this;
    // A fast hand: the browser keeps the positions between two events.
    const events = event.getCoalescedEvents?.() ?? [];
    for (const one of events.length > 0 ? events : [event]) {
      const spot = this.spot(one);
      const last = lasso?.[lasso.length - 1];
      if (lasso !== null && last !== undefined && distance(last, spot) >= LASSO_PX) lasso.push(spot);
    }
    if (lasso !== null) this.handlers.lassoMove(lasso);
  }

  private endLasso(closed: boolean): void {
    const polygon = this.lasso;
    this.lasso = null;
    this.handlers.lassoEnd(closed && polygon !== null && polygon.length > 2 ? polygon : null);
  }

  private pinch(moved: number, before: Spot, now: Spot): void {
    const other = [...this.pressed].find(([id]) => id !== moved)?.[1];
    if (other === undefined) return;
    const middle: Spot = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
    this.handlers.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    this.handlers.zoom(...middle, Math.max(1, distance(now, other)) / Math.max(1, distance(before, other)), false);
  }

  private spot(event: MouseEvent): Spot {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

function distance(a: Spot, b: Spot): number {
  return Math.hypot(a[0] - b[0], a[1] - b[1]);
}

function capture(element: HTMLElement, pointer: number): void {
  try {
    element.setPointerCapture(pointer);
  } catch {
    // A pointer that is no longer there.
  }
}
