// Show the map of the word under the pointer over the image, and the words that attend to a cell of the image.
const DIM = 0.3;
const BRIGHT = 0.85;
const GLOW = 0.15;
const PLATEAU = 0.1;
const MARK = "#f28e2b";
const LEVELS = 16;
const MOST = 5;
const SHARP = 256;

// The cells below and above each pixel along one axis, and the fraction of the upper one: as in image_attention.py.
function steps(cells, pixels) {
  const margin = Math.min(Math.max(PLATEAU, (0.5 * cells) / pixels), 0.499);
  return Array.from({ length: pixels }, (_, pixel) => {
    const place = Math.min(Math.max(((pixel + 0.5) * cells) / pixels - 0.5, 0), cells - 1);
    const low = Math.min(Math.floor(place), Math.max(cells - 2, 0));
    const part = Math.min(Math.max((place - low - margin) / (1 - 2 * margin), 0), 1);
    return { low, high: Math.min(low + 1, cells - 1), part: part * part * (3 - 2 * part) };
  });
}

function caption(article) {
  const figure = article.querySelector("figure");
  const image = figure.querySelector("img");
  const words = [...article.querySelectorAll("p.caption > span")];
  const rows = Number(figure.dataset.rows);
  const columns = Number(figure.dataset.columns);
  const maps = words.map((word) => Uint8Array.from(atob(word.dataset.map), (letter) => letter.charCodeAt(0)));
  // A small image is enlarged by a whole number, so that the outline of a cell is sharp.
  const enlarged = Math.ceil(SHARP / Math.max(image.naturalHeight, image.naturalWidth));
  const [height, width] = [image.naturalHeight * enlarged, image.naturalWidth * enlarged];
  const canvas = document.createElement("canvas");
  canvas.hidden = true;
  [canvas.height, canvas.width] = [height, width];
  canvas.setAttribute("aria-hidden", "true");
  figure.append(canvas);
  const line = lineBelow(article.querySelector("p.caption"));
  article.querySelector("details.panels").open = false;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
  const photo = context.getImageData(0, 0, width, height).data;
  const [down, across] = [steps(rows, height), steps(columns, width)];

  function paint(map) {
    const drawn = context.createImageData(width, height);
    for (let y = 0, place = 0; y < height; y += 1) {
      const vertical = down[y];
      for (let x = 0; x < width; x += 1, place += 4) {
        const { low, high, part } = across[x];
        const mixed = (row) => map[row * columns + low] * (1 - part) + map[row * columns + high] * part;
        const level = (mixed(vertical.low) * (1 - vertical.part) + mixed(vertical.high) * vertical.part) / 255;
        for (let color = 0; color < 3; color += 1) {
          const value = photo[place + color] * (DIM + (BRIGHT - DIM) * level) + 255 * GLOW * level;
          drawn.data[place + color] = Math.round(value);
        }
        drawn.data[place + 3] = 255;
      }
    }
    context.putImageData(drawn, 0, 0);
  }

  function outline(cell) {
    const [high, wide] = [height / rows, width / columns];
    context.strokeStyle = MARK;
    context.lineWidth = Math.max(width, height) / 150;
    context.strokeRect((cell % columns) * wide, Math.floor(cell / columns) * high, wide, high);
  }

  function clear() {
    canvas.hidden = true;
    line.textContent = "";
    for (const word of words) word.className = "";
  }

  function show(word) {
    clear();
    const map = maps[words.indexOf(word)];
    paint(map);
    word.className = "chosen";
    canvas.hidden = false;
    const { most, cell, probability } = word.dataset;
    const chance = probability === undefined ? "" : `; probability of the word: ${probability}`;
    if (!map.some(Boolean)) {
      line.textContent = `${isolated(word)} has only weights of 0${chance}`;
      return;
    }
    const weight = Number(Number(most).toPrecision(2));
    if (cell === undefined) {
      line.textContent = `${isolated(word)} attended almost uniformly (largest weight ${weight})${chance}`;
      return;
    }
    outline(Number(cell));
    const place = `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1} of ${rows} x ${columns}`;
    line.textContent = `${isolated(word)} attended most to ${place} (weight ${weight})${chance}`;
  }

  function showCell(cell) {
    clear();
    const weights = words.map((word, number) => (maps[number][cell] / 255) * Number(word.dataset.most));
    const largest = Math.max(...weights) || 1;
    words.forEach((word, number) => {
      const level = Math.round((LEVELS * weights[number]) / largest);
      word.className = level ? `l${level}` : "";
    });
    context.putImageData(new ImageData(new Uint8ClampedArray(photo), width, height), 0, 0);
    outline(cell);
    canvas.hidden = false;
    const order = words.map((_, number) => number).filter((number) => weights[number] >= 0.005);
    order.sort((one, other) => weights[other] - weights[one]);
    const texts = order.slice(0, MOST).map((number) => `${isolated(words[number])} (${weights[number].toFixed(2)})`);
    const place = `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
    line.textContent = `${place} was attended to by ${texts.join(", ") || "no word"}`;
  }

  function wordAt(event) {
    const word = event.target instanceof Element ? event.target.closest("span") : null;
    return words.includes(word) ? word : null;
  }

  function focused() {
    return words.includes(document.activeElement) ? document.activeElement : null;
  }

  function restore() {
    const word = focused();
    if (word) show(word);
    else clear();
  }

  const text = article.querySelector("p.caption");
  reachable(text, words);
  text.addEventListener("pointerover", (event) => {
    const word = wordAt(event);
    if (word) show(word);
  });
  text.addEventListener("pointerleave", restore);
  text.addEventListener("focusin", (event) => {
    const word = wordAt(event);
    if (word) show(word);
  });
  text.addEventListener("focusout", clear);
  figure.addEventListener("pointermove", (event) => {
    const box = figure.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    if (row >= 0 && row < rows && column >= 0 && column < columns) showCell(row * columns + column);
  });
  figure.addEventListener("pointerleave", restore);
}

for (const article of document.querySelectorAll("article")) {
  const image = article.querySelector("figure img");
  image.decode().then(() => {
    caption(article);
    document.getElementById("hint").hidden = false;
  });
}
