"""A client, as Flower's PyTorch quickstart has it. docs/flower.md has the one line that records."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import Net, load_data
from digits_app.task import test as test_fn
from digits_app.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data = load_data(context.node_config["partition-id"], context.run_config["examples-per-client"])
    loss = train_fn(
        model,
        data,
        epochs=context.run_config["local-epochs"],
        lr=msg.content["config"]["lr"],
        batch=context.run_config["batch-size"],
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data = load_data(context.node_config["partition-id"], context.run_config["examples-per-client"])
    loss, accuracy = test_fn(model, data)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
