/** The page: reads its data, lays out its parts and wires them together. */

import "./style.css";
import { Card } from "./card";
import { Classes } from "./classes";
import { Compare } from "./compare";
import { count, h } from "./dom";
import { FixedSource } from "./fixed";
import { Gallery } from "./gallery";
import { Header } from "./header";
import { History } from "./history";
import { listen } from "./keys";
import { Knobs } from "./knobs";
import { LiveSource } from "./live";
import type { Insets } from "./map/camera";
import { MapView } from "./map/map";
import { Model, NO_ROW } from "./model";
import { Reading } from "./reading";
import { Search } from "./search";
import type { Masks, Source } from "./source";
import { Tabs } from "./tabs";
import { startTheme } from "./theme";
import { Thumbs } from "./thumbs";
import { Toast } from "./toast";
import { Toolbar } from "./toolbar";

const HOVER_DELAY = 40;

async function start(root: HTMLElement): Promise<void> {
  const kind = document.querySelector('meta[name="thresher-source"]')?.getAttribute("content");
  const source: Source = kind === "static" ? new FixedSource() : new LiveSource(new URL(location.href));
  const [info, table, masks] = await Promise.all([source.info(), source.points(), source.state()]);
  const model = new Model(source, info, table, masks);
  document.title = `${info.name} · Thresher`;
  const knobs = new Knobs(model);
  lay(root, model, knobs);
  // What takes the server seconds for a million samples comes after the map.
  await source.knobs().then(
    (described) => knobs.describe(described),
    (error: unknown) => knobs.fail(error),
  );
  if (model.place === null) {
    const places = await source.places().catch(() => null);
    if (places !== null) model.setPlaces(places);
  }
}

function lay(root: HTMLElement, model: Model, knobs: Knobs): void {
  const { source } = model;
  const toast = new Toast();
  const thumbs = new Thumbs(model);
  const search = new Search(model);
  const header = new Header(model, search.element);
  const map = new MapView(model);
  const toolbar = new Toolbar(model);
  const gallery = new Gallery(model, thumbs);
  const reading = new Reading(model);
  const compare = new Compare(model, thumbs);
  const history = new History(model);
  const hover = new Card(model, thumbs, false);
  const focus = new Card(model, thumbs, true);
  const tabs = new Tabs([
    { name: "Gallery", element: gallery.element },
    { name: "Reading", element: reading.element, shown: () => reading.render() },
    { name: "Compare", element: compare.element },
    { name: "Log", element: history.element, shown: () => void history.render() },
  ]);

  const change = async (step: () => Promise<Masks>, said: string): Promise<void> => {
    try {
      model.setMasks(await step());
      toast.say(said);
    } catch (error) {
      toast.say(error instanceof Error ? error.message : String(error), true);
    }
  };
  const decide = (rows: number[], keep: boolean, reason: string): void => {
    if (!source.live || rows.length === 0) return;
    const ids = rows.map((row) => model.id(row));
    const what = ids.length === 1 ? (ids[0] ?? "") : `${count(ids.length)} samples`;
    void change(() => source.decide(ids, keep, reason), `${keep ? "Kept" : "Dropped"} ${what}.`);
  };
  const undo = (): void => {
    if (source.live && model.undoable > 0) void change(() => source.undo(), "Undone.");
  };
  const redo = (): void => {
    if (source.live && model.redoable > 0) void change(() => source.redo(), "Done again.");
  };

  gallery.onDecide = decide;
  focus.onDecide = (row, keep) => gallery.decide(keep, [row]);
  focus.onNeighbours = (rows) => map.link(rows);
  header.onUndo = undo;
  header.onRedo = redo;
  toolbar.onMode = (mode) => map.setMode(mode);
  toolbar.onDense = (dense) => map.setDense(dense);
  toolbar.onFit = () => map.fit();
  map.insets = () => insets(map.element, toolbar);
  map.onEncoded = (encoding) => toolbar.show(encoding);
  knobs.settled = () => map.settled();
  knobs.say = (text, wrong) => toast.say(text, wrong);
  compare.onCompared = () => model.setColour("comparison");
  wireHover(model, map, hover);

  focus.element.hidden = true;
  hover.element.classList.add("hover");
  hover.element.hidden = true;
  hover.element.setAttribute("aria-hidden", "true");
  model.on(["focus", "decisions", "places"], () => focus.show(model.focus));
  model.on(["preview"], () => focus.renew());
  model.on(["picked"], () => {
    if (model.picked !== null) tabs.show("Gallery");
    toast.announce(model.picked === null ? "nothing picked" : `${count(model.picked.rows.length)} samples picked`);
  });

  const empty = model.n === 0 ? h("p", { className: "empty" }, "This selection holds no samples.") : null;
  root.replaceChildren(
    header.element,
    h("aside", { className: "left", "aria-label": "Filter and classes" }, knobs.element, new Classes(model).element),
    h("main", { className: "centre" }, map.element, toolbar.element, toolbar.legend, hover.element, empty),
    h("aside", { className: "right", "aria-label": "Samples" }, focus.element, tabs.element),
    toast.element,
  );
  root.classList.add("ready");

  try {
    map.start();
  } catch (error) {
    map.element.replaceChildren(
      h("p", { className: "empty" }, `The map cannot be drawn. ${error instanceof Error ? error.message : ""} The gallery works without it.`),
    );
  }
  listen({
    step: (across, down) => {
      tabs.show("Gallery");
      gallery.step(across, down);
    },
    end: (last) => gallery.end(last),
    page: () => gallery.page,
    decide: (keep, all) => gallery.decide(keep, all || model.focus === NO_ROW ? gallery.targets() : [model.focus]),
    undo,
    redo,
    search: () => search.input.focus(),
    lasso: () => toolbar.toggleLasso(),
    fit: () => map.fit(),
    escape: () => (model.focus === NO_ROW ? model.pick(null) : model.setFocus(NO_ROW)),
    help: () => header.showHelp(),
  });
  source.listen(
    (news) => {
      if (news.type === "state" && news.selection === model.info.name) {
        void source.state().then((masks) => model.setMasks(masks), () => undefined);
      } else if (news.type === "selections") {
        model.info.selections = news.selections;
        model.tell("selections");
      }
    },
    (yes) => header.connected(yes),
  );
}

/** How much of the map the toolbar and the legend cover. */
function insets(map: HTMLElement, toolbar: Toolbar): Insets {
  const box = map.getBoundingClientRect();
  const top = toolbar.element.hidden ? 0 : toolbar.element.getBoundingClientRect().bottom - box.top;
  const legend = toolbar.legend.hidden ? 0 : box.bottom - toolbar.legend.getBoundingClientRect().top;
  // On a very small map they would leave no room.
  const most = box.height / 4;
  return { top: Math.min(top, most), right: 0, bottom: Math.min(Math.max(legend, 0), most), left: 0 };
}

/** The card under the pointer: beside it, never beyond the map's edge. */
function wireHover(model: Model, map: MapView, card: Card): void {
  let timer = 0;
  map.onHover = (row) => {
    window.clearTimeout(timer);
    if (row === NO_ROW) {
      timer = window.setTimeout(() => card.show(NO_ROW), HOVER_DELAY);
      return;
    }
    timer = window.setTimeout(() => {
      if (!model.passes(row)) return;
      card.show(row);
      const at = map.position(row);
      if (at === undefined) return;
      const box = map.element.getBoundingClientRect();
      const { offsetWidth: width, offsetHeight: height } = card.element;
      const left = at[0] + 18 + width > box.width ? at[0] - width - 18 : at[0] + 18;
      const top = Math.max(8, Math.min(box.height - height - 8, at[1] - height / 2));
      card.element.style.transform = `translate(${Math.round(Math.max(8, left))}px, ${Math.round(top)}px)`;
    }, HOVER_DELAY);
  };
}

const root = document.getElementById("page");
if (root !== null) {
  startTheme();
  root.append(h("p", { className: "loading", role: "status" }, "Reading the samples…"));
  start(root).catch((error: unknown) => {
    root.replaceChildren(
      h("p", { className: "loading wrong", role: "alert" }, error instanceof Error ? error.message : String(error)),
    );
  });
}
