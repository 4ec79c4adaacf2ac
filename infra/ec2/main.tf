locals {
  tags = merge(
    var.tags,
    {
      "clusterctl:cluster" = var.cluster_id
      "clusterctl:name"    = var.cluster_name
    },
    {
      for key, value in {
        "clusterctl:owner"  = var.owner
        "clusterctl:client" = var.client
        "clusterctl:shared" = var.shared
      } : key => value if value != ""
    }
  )

  # `extend` moves the deadline.
  all_tags = merge(local.tags, { for key, value in { "clusterctl:deadline" = var.deadline } : key => value if value != "" })

  # GPU types need the image with their driver.
  standalone = [{
    family        = "cpu"
    instance_type = var.worker_type
    count         = 2
    image         = startswith(var.worker_type, "g4ad.") ? "amd" : can(regex("^(g|p)[0-9]", var.worker_type)) ? "nvidia" : "cpu"
    numbers       = []
    placement     = true
    disk          = 0
    throughput    = 125
  }]
  groups = var.multinode_mpi ? local.standalone : var.groups

  # The numbers of a group's workers: its own, or those that follow the groups before it.
  numbers = [
    for index, group in local.groups : length(group.numbers) > 0 ? group.numbers : range(
      1 + sum(concat([0], [for before in slice(local.groups, 0, index) : before.count])),
      1 + sum(concat([0], [for before in slice(local.groups, 0, index) : before.count])) + group.count
    )
  ]

  workers = merge([
    for index, group in local.groups : {
      for number in local.numbers[index] : "worker-${number}" => {
        role          = "worker"
        instance_type = coalesce(group.instance_type, try(local.catalog.families[group.family].instance_type, "unknown"))
        image         = coalesce(group.image, try(local.catalog.families[group.family].image, "cpu"))
        placement     = group.placement
        disk          = group.disk
        throughput    = group.throughput
      }
    }
  ]...)

  # Every node by name: removing one leaves the others as they are.
  nodes = merge(local.workers, {
    for name in ["launcher"] : name => {
      role          = name
      instance_type = var.launcher_type
      image         = name
      placement     = false
      disk          = var.launcher_disk
      throughput    = 125
    } if var.launcher_type != ""
  })

  types = toset([for node in local.nodes : node.instance_type])

  kinds = toset([for node in local.nodes : node.image])
  amis  = { for kind in local.kinds : kind => try(var.amis[kind], data.aws_ami.this[kind].id) }

  # The nodes of the placement group. Also a worker that is alone is in it, since it may be joined by
  # others, and whoever runs cannot move.
  placement = [
    for name, node in local.nodes : name
    if var.placement_group && node.placement && !can(regex("^t[0-9]", node.instance_type))
  ]

  # The network cards of each worker with EFA, from its launch template, by what their interfaces are.
  cards = { for name, node in local.workers : name => lookup(var.efa_cards, node.instance_type, ["efa"]) if var.efa }
  efa   = keys(local.cards)

  # A template for each number of cards: types with one card share theirs. On-demand workers beside spot
  # instances have their own: EC2 refuses tags for a spot request where none is made.
  template_of = merge({ launcher = "launcher" }, {
    for name, node in local.workers : name => join("-", compact([
      length(lookup(local.cards, name, [])) > 1 ? node.instance_type : "workers",
      var.spot && contains(var.on_demand, name) ? "on-demand" : "",
    ]))
  })
  templates = { for name, key in local.template_of : key => lookup(local.cards, name, [])... }

  # What a node runs at boot where nobody says it: only the end of its life.
  last_resort = "#cloud-config\n${jsonencode({
    runcmd = [["shutdown", "-P", "+${floor(var.ttl_hours * 60)}"]]
  })}"
}

data "aws_ami" "this" {
  for_each    = setsubtract(local.kinds, keys(var.amis))
  most_recent = true
  owners      = [local.catalog.images[each.key].owner]

  filter {
    name   = "name"
    values = [local.catalog.images[each.key].name]
  }

  filter {
    name   = "architecture"
    values = ["x86_64"]
  }

  filter {
    name   = "state"
    values = ["available"]
  }
}

resource "aws_key_pair" "this" {
  for_each   = toset(var.public_key == "" ? [] : ["user"])
  key_name   = var.cluster_id
  public_key = var.public_key
}

resource "aws_placement_group" "this" {
  for_each = toset(length(local.placement) > 0 ? ["workers"] : [])
  name     = var.cluster_id
  strategy = "cluster"
}

# What an instance of its own cannot say and a template can: the tags and the kind of its network
# interfaces, and the tags of the request for a spot instance.
resource "aws_launch_template" "this" {
  for_each = local.templates
  name     = each.key == "workers" ? var.cluster_id : "${var.cluster_id}-${replace(each.key, ".", "-")}"

  # One interface for each network card. EC2 gives no public address to who has several.
  dynamic "network_interfaces" {
    for_each = each.value[0]

    content {
      network_card_index          = length(each.value[0]) > 1 ? network_interfaces.key : null
      device_index                = network_interfaces.key == 0 ? 0 : 1
      interface_type              = network_interfaces.value
      subnet_id                   = local.subnet_id
      security_groups             = [aws_security_group.nodes.id]
      associate_public_ip_address = length(each.value[0]) > 1 ? null : !var.private
      delete_on_termination       = true
    }
  }

  dynamic "tag_specifications" {
    for_each = concat(["network-interface"], each.key != "launcher" && !endswith(each.key, "-on-demand") && var.spot ? ["spot-instances-request"] : [])

    content {
      resource_type = tag_specifications.value
      tags          = local.all_tags
    }
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
}

resource "aws_instance" "this" {
  for_each = local.nodes

  ami                                  = local.amis[each.value.image]
  instance_type                        = each.value.instance_type
  subnet_id                            = contains(local.efa, each.key) ? null : each.key == "launcher" ? local.launcher_subnet_id : local.subnet_id
  associate_public_ip_address          = contains(local.efa, each.key) ? null : each.key == "launcher" ? !local.hidden : !var.private
  vpc_security_group_ids               = each.key == "launcher" ? [aws_security_group.nodes.id, aws_security_group.ssh.id] : contains(local.efa, each.key) ? null : [aws_security_group.nodes.id]
  key_name                             = one([for pair in aws_key_pair.this : pair.key_name])
  placement_group                      = contains(local.placement, each.key) ? one([for group in aws_placement_group.this : group.name]) : null
  private_ip                           = lookup(local.addresses, each.key, null)
  user_data                            = lookup(var.user_data, each.key, lookup(local.mesh, each.key, local.last_resort))
  instance_initiated_shutdown_behavior = "terminate"
  ebs_optimized                        = !startswith(each.value.instance_type, "t2.") # which EC2 refuses

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type           = "gp3"
    volume_size           = each.value.disk != 0 ? each.value.disk : var.disk != 0 ? var.disk : each.value.image == "cpu" ? 30 : 100
    throughput            = each.value.throughput # also where it is the usual one: a machine image may have more
    encrypted             = true
    delete_on_termination = true
  }

  # Disks get their tags as they are made. Those of root_block_device come in a call of its own, which
  # takes the right to tag any disk that has no tags, whoever it belongs to.
  volume_tags = merge(local.all_tags, { Name = "${var.cluster_id}-${each.key}" })

  # T3 and T4g begin as `unlimited`, which bills every vCPU-hour above their baseline: ranks compute all
  # the time. The launcher does not, and as `standard` a t3.micro, which gets no credits at launch, would
  # install its packages at a tenth of its speed.
  dynamic "credit_specification" {
    for_each = each.key != "launcher" && can(regex("^t[2-9]", each.value.instance_type)) ? ["standard"] : []

    content {
      cpu_credits = credit_specification.value
    }
  }

  launch_template {
    id      = aws_launch_template.this[local.template_of[each.key]].id
    version = aws_launch_template.this[local.template_of[each.key]].latest_version
  }

  dynamic "instance_market_options" {
    for_each = var.spot && each.key != "launcher" && !contains(var.on_demand, each.key) ? ["spot"] : []

    content {
      market_type = instance_market_options.value

      dynamic "spot_options" {
        for_each = var.spot ? ["spot"] : []

        content {
          spot_instance_type             = "one-time"
          instance_interruption_behavior = "terminate"
        }
      }
    }
  }

  tags = {
    Name              = "${var.cluster_id}-${each.key}"
    "clusterctl:node" = each.key
  }

  lifecycle {
    # A node lives with what it was made from, and where: newer images, other deadlines, a template and
    # a group that came later are for new nodes.
    ignore_changes = [ami, user_data, placement_group, launch_template, root_block_device[0].throughput]

    precondition {
      condition     = each.value.instance_type != "unknown"
      error_message = "There is no such family: choose one of ${join(", ", keys(local.catalog.families))}, or give an instance_type."
    }
  }
}
