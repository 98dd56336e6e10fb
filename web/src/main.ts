/** The page: loads its data, creates its parts and connects them. */

import "./style.css";
import { Analysis } from "./analysis";
import { ClassList } from "./classList";
import { CompareTab } from "./compare";
import { CopiesTab } from "./copies";
import { errorText, type DataSource } from "./dataSource";
import { DecisionBar } from "./decisionBar";
import { DecisionLog } from "./decisionLog";
import { h } from "./dom";
import { ExportSource } from "./exportSource";
import { FilterPanel } from "./filterPanel";
import { Gallery } from "./gallery";
import { Header } from "./header";
import { listenToKeyboard } from "./keyboard";
import type { Insets } from "./map/camera";
import { MapView } from "./map/mapView";
import { Model, NO_ROW } from "./model";
import { SampleCard } from "./sampleCard";
import { Search } from "./search";
import { ServerSource } from "./serverSource";
import { Tabs } from "./tabs";
import { startTheme } from "./theme";
import { Thumbnails } from "./thumbnails";
import type { TileGrid } from "./tileGrid";
import { createToast } from "./toast";
import { Toolbar } from "./toolbar";

const HOVER_DELAY_MS = 40;

async function start(root: HTMLElement): Promise<void> {
  const kind = document.querySelector('meta[name="thresher-source"]')?.getAttribute("content");
  const source: DataSource = kind === "static" ? new ExportSource() : new ServerSource(new URL(location.href));
  const [info, table, decisions] = await Promise.all([source.info(), source.points(), source.decisions()]);
  const model = new Model(source, info, table, decisions);
  document.title = `${info.name} · Thresher`;
  const filter = createPage(root, model);
  // What takes the server seconds for a million samples comes after the map.
  await filter.load();
  if (model.neighbourhoodLabel !== null) return;
  const labels = await source.neighbourhoodLabels().catch(() => null);
  if (labels !== null) model.setNeighbourhoodLabels(labels);
}

function createPage(root: HTMLElement, model: Model): FilterPanel {
  const { source } = model;
  const thumbnails = new Thumbnails(model);
  const search = new Search(model);
  const header = new Header(model, search.element);
  const map = new MapView(model);
  const toolbar = new Toolbar(model, map);
  const filter = new FilterPanel(model, () => map.drawn());
  const gallery = new Gallery(model, thumbnails);
  const copies = new CopiesTab(model, thumbnails);
  const compare = new CompareTab(model, thumbnails);
  const decisions = new DecisionBar(model);
  const analysis = new Analysis(model);
  const log = new DecisionLog(model);
  const hoverCard = new SampleCard(model, thumbnails, null);
  const focusCard = new SampleCard(model, thumbnails, (row, keep) => decisions.decide(keep, [row]));
  const tabs = new Tabs(model, [
    { name: "Gallery", element: gallery.element },
    { name: "Copies", element: copies.element, onShow: () => copies.load() },
    { name: "Analysis", element: analysis.element, onShow: () => analysis.render(), topics: ["decisions", "preview", "theme", "neighbourhood"] },
    { name: "Compare", element: compare.element },
    { name: "Log", element: log.element, onShow: () => log.render(), topics: ["decisions"] },
  ]);
  focusCard.onNeighbours = (rows) => map.setNeighbours(rows);
  map.insets = () => coveredEdges(map.element, toolbar);
  showHoverCard(map, hoverCard);
  model.on(["focus", "decisions", "neighbourhood"], () => focusCard.show(model.focus));
  model.on(["preview"], () => focusCard.refresh());
  model.on(["picked"], () => {
    if (model.picked !== null) tabs.show("Gallery");
  });
  const empty = model.n === 0 ? h("p", { className: "empty" }, "This selection holds no samples.") : null;
  root.replaceChildren(
    header.element,
    h("aside", { className: "left", "aria-label": "Filter and classes" }, filter.element, new ClassList(model).element),
    h("main", { className: "centre" }, map.element, toolbar.element, toolbar.legend, hoverCard.element, empty),
    h("aside", { className: "right", "aria-label": "Samples" }, focusCard.element, decisions.element, tabs.element),
    createToast(model),
  );
  root.classList.add("ready");
  try {
    map.start();
  } catch (error) {
    const text = `The map cannot be drawn. ${errorText(error)} The gallery works without it.`;
    map.element.replaceChildren(h("p", { className: "empty" }, text));
  }
  /** Do something with the tiles on the tab that is shown, else with the gallery. */
  const tiles = (action: (grid: TileGrid) => void) => (): void => {
    if (tabs.current !== "Copies") tabs.show("Gallery");
    action(tabs.current === "Copies" ? copies.grid : gallery.grid);
  };
  listenToKeyboard({
    ArrowLeft: tiles((grid) => grid.step(-1, 0)),
    ArrowRight: tiles((grid) => grid.step(1, 0)),
    ArrowUp: tiles((grid) => grid.step(0, -1)),
    ArrowDown: tiles((grid) => grid.step(0, 1)),
    PageUp: tiles((grid) => grid.stepPage(-1)),
    PageDown: tiles((grid) => grid.stepPage(1)),
    Home: tiles((grid) => grid.goTo("first")),
    End: tiles((grid) => grid.goTo("last")),
    k: () => decisions.decideFocused(true),
    d: () => decisions.decideFocused(false),
    K: () => decisions.decide(true),
    D: () => decisions.decide(false),
    o: () => (tabs.current === "Copies" ? copies.settleGroup() : undefined),
    c: () => decisions.newLabel.focus(),
    u: () => model.undo(),
    r: () => model.redo(),
    "/": () => search.input.focus(),
    l: () => toolbar.toggleLasso(),
    f: () => map.fit(),
    "?": () => header.showHelp(),
    Escape: () => (model.focus === NO_ROW ? model.pick(null) : model.setFocus(NO_ROW)),
  });
  const refresh = (): void => void model.load(() => source.decisions()).catch(() => undefined);
  source.subscribe(
    (event) => {
      if (event.type === "state" && event.selection === model.info.name) refresh();
      else if (event.type === "state" && event.selection === model.comparison?.numbers.b) void compare.load();
      else if (event.type === "selections") {
        model.info.selections = event.selections;
        model.emit("selections");
      }
    },
    (connected) => {
      header.setConnected(connected);
      // Decisions made before the connection, or while it was lost, were not announced.
      if (connected) refresh();
    },
  );
  return filter;
}

/** How much of the map the toolbar and the legend cover. */
function coveredEdges(map: HTMLElement, toolbar: Toolbar): Insets {
  const box = map.getBoundingClientRect();
  const top = toolbar.element.hidden ? 0 : toolbar.element.getBoundingClientRect().bottom - box.top;
  const legend = toolbar.legend.hidden ? 0 : box.bottom - toolbar.legend.getBoundingClientRect().top;
  // On a very small map they would leave no room.
  const most = box.height / 4;
  return { top: Math.min(top, most), right: 0, bottom: Math.min(Math.max(legend, 0), most), left: 0 };
}

/** Show a card beside the sample under the pointer, inside the map. */
function showHoverCard(map: MapView, card: SampleCard): void {
  let timer = 0;
  map.onHover = (row) => {
    window.clearTimeout(timer);
    timer = window.setTimeout(() => {
      card.show(row);
      const at = row === NO_ROW ? undefined : map.position(row);
      if (at === undefined) return;
      const box = map.element.getBoundingClientRect();
      const { offsetWidth: width, offsetHeight: height } = card.element;
      const left = at[0] + 18 + width > box.width ? at[0] - width - 18 : at[0] + 18;
      const top = Math.max(8, Math.min(box.height - height - 8, at[1] - height / 2));
      card.element.style.transform = `translate(${Math.round(Math.max(8, left))}px, ${Math.round(top)}px)`;
    }, HOVER_DELAY_MS);
  };
}

const root = document.getElementById("page");
if (root !== null) {
  startTheme();
  root.append(h("p", { className: "loading", role: "status" }, "Loading the samples…"));
  start(root).catch((error: unknown) => {
    root.replaceChildren(h("p", { className: "loading wrong", role: "alert" }, errorText(error)));
  });
}
