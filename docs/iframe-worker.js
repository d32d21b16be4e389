// Search when the pages are opened from the disk. Browsers start no Worker from a file: URL, so the script of the
// worker runs in a hidden frame instead. Served over HTTP, this does nothing.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve) => {
        const script = frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = resolve;
        frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      const deliver = () => this.inside.dispatchEvent(new MessageEvent("message", { data }));
      this.ready.then(() => setTimeout(deliver)); // a task for each message, as a Worker has
    }
  };
}
