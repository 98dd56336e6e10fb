/** Pan, zoom, click, hover and lasso by mouse, pen or touch, without inertia. */

/** A press that moves less than this is a click. */
const CLICK_PX = 4;
/** Minimum distance between the corners of a lasso. */
const LASSO_PX = 3;
const ZOOM_PER_PX = 0.0016;
const LINE_PX = 16;
const PAGE_PX = 400;

export type Mode = "pan" | "lasso";
export type Position = [left: number, top: number];

export interface GestureHandlers {
  pan(dx: number, dy: number): void;
  /** Zoom to (left, top). A step of a mouse wheel is a jump, a pinch is not. */
  zoom(left: number, top: number, factor: number, jump: boolean): void;
  hover(position: Position | null): void;
  click(position: Position): void;
  /** A corner of the lasso was added. */
  lassoMove(polygon: Position[]): void;
  /** The lasso was closed, or cancelled (null). */
  lassoEnd(polygon: Position[] | null): void;
}

export class Gestures {
  mode: Mode = "pan";
  private readonly pressed = new Map<number, Position>();
  private lasso: Position[] | null = null;
  /** Where the press began; null once it has moved and is no click. */
  private start: Position | null = null;

  constructor(private readonly element: HTMLElement, private readonly handlers: GestureHandlers) {
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
    const position = this.position(event);
    capture(this.element, event.pointerId);
    this.pressed.set(event.pointerId, position);
    this.handlers.hover(null);
    if (this.pressed.size > 1) {
      this.start = null;
      if (this.lasso !== null) this.endLasso(false);
      return;
    }
    this.start = position;
    if (this.mode === "lasso" || event.shiftKey) this.lasso = [position];
  }

  private move(event: PointerEvent): void {
    const position = this.position(event);
    const before = this.pressed.get(event.pointerId);
    if (before === undefined) {
      if (this.pressed.size === 0) this.handlers.hover(position);
      return;
    }
    if (this.start !== null && distance(this.start, position) < CLICK_PX) return;
    this.start = null;
    if (this.lasso !== null) this.extend(event);
    else if (this.pressed.size === 1) this.handlers.pan(position[0] - before[0], position[1] - before[1]);
    else this.pinch(event.pointerId, before, position);
    this.pressed.set(event.pointerId, position);
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
    const [left, top] = this.position(event);
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE_PX : event.deltaMode === WheelEvent.DOM_DELTA_PAGE ? PAGE_PX : 1;
    // A pinch on a touchpad arrives as small wheel events with the control key.
    const delta = event.deltaY * unit * (event.ctrlKey ? 5 : 1);
    this.handlers.zoom(left, top, Math.exp(-delta * ZOOM_PER_PX), !event.ctrlKey && Math.abs(delta) > 40);
  }

  private extend(event: PointerEvent): void {
    const { lasso } = this;
    // The browser keeps the positions between two events.
    const events = event.getCoalescedEvents?.() ?? [];
    for (const one of events.length > 0 ? events : [event]) {
      const position = this.position(one);
      const last = lasso?.[lasso.length - 1];
      if (lasso !== null && last !== undefined && distance(last, position) >= LASSO_PX) lasso.push(position);
    }
    if (lasso !== null) this.handlers.lassoMove(lasso);
  }

  private endLasso(closed: boolean): void {
    const polygon = this.lasso;
    this.lasso = null;
    this.handlers.lassoEnd(closed && polygon !== null && polygon.length > 2 ? polygon : null);
  }

  private pinch(moved: number, before: Position, now: Position): void {
    const other = [...this.pressed].find(([id]) => id !== moved)?.[1];
    if (other === undefined) return;
    const middle: Position = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
    this.handlers.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    this.handlers.zoom(...middle, Math.max(1, distance(now, other)) / Math.max(1, distance(before, other)), false);
  }

  private position(event: MouseEvent): Position {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

function distance(a: Position, b: Position): number {
  return Math.hypot(a[0] - b[0], a[1] - b[1]);
}

function capture(element: HTMLElement, pointer: number): void {
  try {
    element.setPointerCapture(pointer);
  } catch {
    // The pointer has already gone.
  }
}
