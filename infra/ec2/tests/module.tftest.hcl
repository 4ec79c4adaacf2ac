# Plans of the module without AWS: `terraform test` in this folder's parent.
mock_provider "aws" {
  mock_data "aws_ami" {
    defaults = { id = "ami-00000000000000000" }
  }

  mock_resource "aws_launch_template" {
    defaults = { id = "lt-00000000000000000", latest_version = 1 }
  }

  mock_data "aws_ec2_instance_type_offerings" {
    defaults = { locations = ["us-east-1b", "us-east-1-bos-1a", "us-east-1a"] }
  }
}

run "numbers_of_its_own" {
  command = plan

  variables {
    groups = [{ instance_type = "c6i.large", count = 1, numbers = [7] }, { instance_type = "c6i.xlarge", count = 1, numbers = [1], disk = 60 }]
    amis   = { launcher = "ami-1", cpu = "ami-2" }
    disk   = 50
  }

  assert {
    condition     = toset(keys(aws_instance.this)) == toset(["launcher", "worker-1", "worker-7"])
    error_message = "Workers keep the numbers they are given."
  }

  assert {
    condition     = aws_instance.this["worker-7"].ami == "ami-2" && aws_instance.this["launcher"].ami == "ami-1" && length(data.aws_ami.this) == 0
    error_message = "Images that are named are not looked up."
  }

  assert {
    condition     = aws_instance.this["worker-7"].root_block_device[0].volume_size == 50 && aws_instance.this["worker-1"].root_block_device[0].volume_size == 60 && aws_instance.this["launcher"].root_block_device[0].volume_size == 30
    error_message = "The disk is the workers'."
  }
}

run "workers_first" {
  command = plan

  variables {
    launcher_type = ""
  }

  assert {
    condition     = toset(keys(aws_instance.this)) == toset(["worker-1", "worker-2"]) && length(output.nodes) == 2
    error_message = "A launcher without a type is not made."
  }
}

run "defaults" {
  command = apply

  assert {
    condition     = toset(keys(aws_instance.this)) == toset(["launcher", "worker-1", "worker-2"])
    error_message = "By default there are a launcher and two workers."
  }

  assert {
    condition     = aws_instance.this["launcher"].instance_type == "t3.micro" && aws_instance.this["worker-2"].instance_type == "c7i.xlarge"
    error_message = "The default types are t3.micro and c7i.xlarge."
  }

  assert {
    condition     = aws_subnet.this["own"].availability_zone == "us-east-1a"
    error_message = "The zone is the first that offers every type."
  }

  assert {
    condition = alltrue([
      for node in aws_instance.this :
      node.metadata_options[0].http_tokens == "required" &&
      node.root_block_device[0].encrypted &&
      node.root_block_device[0].volume_type == "gp3" &&
      node.volume_tags["clusterctl:cluster"] == "standalone" &&
      node.instance_initiated_shutdown_behavior == "terminate"
    ])
    error_message = "IMDSv2, encrypted tagged gp3, terminate on shutdown."
  }

  assert {
    condition     = alltrue([for node in aws_instance.this : strcontains(node.user_data, "+480")])
    error_message = "Nodes end themselves after eight hours."
  }

  assert {
    condition     = alltrue([for node in aws_instance.this : length(node.credit_specification) == 0 && node.ebs_optimized])
    error_message = "Workers are not burstable by default."
  }

  assert {
    condition     = length(aws_security_group.ssh.ingress) == 0
    error_message = "Nobody outside may come in unless somebody is named."
  }

  assert {
    condition     = length(aws_key_pair.this) == 0
    error_message = "There is no key to upload."
  }

  assert {
    condition     = alltrue([for node in aws_instance.this : node.associate_public_ip_address && node.subnet_id == aws_subnet.this["own"].id]) && length(aws_nat_gateway.this) + length(aws_subnet.private) == 0
    error_message = "All nodes have public addresses, in one subnet."
  }
}

run "a_subnet_of_theirs" {
  command = plan

  variables {
    subnet_id = "subnet-0123"
  }

  override_data {
    target = data.aws_subnet.theirs
    values = { vpc_id = "vpc-0123" }
  }

  assert {
    condition     = length(aws_vpc.this) + length(aws_subnet.this) + length(aws_internet_gateway.this) + length(aws_route_table.this) == 0
    error_message = "No network is made where there is one."
  }

  assert {
    condition     = aws_security_group.nodes.vpc_id == "vpc-0123" && aws_security_group.ssh.vpc_id == "vpc-0123"
    error_message = "The groups are made in their VPC."
  }

  assert {
    condition     = length(data.aws_ec2_instance_type_offerings.this) == 0
    error_message = "The subnet says which zone it is."
  }
}

run "burstable" {
  command = plan

  variables {
    groups   = [{ instance_type = "t3.xlarge", count = 1 }, { instance_type = "t2.large", count = 1 }]
    ssh_cidr = "203.0.113.7/32,198.51.100.0/24"
  }

  assert {
    condition     = alltrue([for name, node in aws_instance.this : name == "launcher" ? length(node.credit_specification) == 0 : one(node.credit_specification).cpu_credits == "standard"])
    error_message = "Burstable workers do not run up a bill for surplus CPU credits."
  }

  assert {
    condition     = length(aws_placement_group.this) == 0
    error_message = "Burstable types may not be in a cluster placement group."
  }

  assert {
    condition     = aws_instance.this["worker-1"].ebs_optimized && !aws_instance.this["worker-2"].ebs_optimized
    error_message = "EC2 starts no t2 with EBS optimisation."
  }

  assert {
    condition     = toset(one(aws_security_group.ssh.ingress).cidr_blocks) == toset(["203.0.113.7/32", "198.51.100.0/24"])
    error_message = "Several networks are let in by one rule."
  }
}

run "gpus" {
  command = apply

  variables {
    groups     = [{ family = "g4dn", count = 2 }, { family = "g4ad", count = 1 }]
    ssh_cidr   = "203.0.113.7/32"
    public_key = "ssh-ed25519 AAAA"
    spot       = true
    on_demand  = ["worker-3"]
    zone       = "us-east-1c"
  }

  assert {
    condition     = aws_instance.this["worker-2"].instance_type == "g4dn.xlarge" && aws_instance.this["worker-3"].instance_type == "g4ad.xlarge"
    error_message = "Numbers go on over the groups."
  }

  assert {
    condition     = aws_instance.this["worker-3"].placement_group == "standalone" && aws_instance.this["launcher"].placement_group != "standalone"
    error_message = "Workers share a placement group, the launcher stays out."
  }

  assert {
    condition     = length(aws_instance.this["worker-1"].instance_market_options) == 1 && length(aws_instance.this["launcher"].instance_market_options) == 0
    error_message = "Workers are spot instances, the launcher is not."
  }

  assert {
    condition     = length(aws_instance.this["worker-3"].instance_market_options) == 0 && one(aws_launch_template.this["workers-on-demand"].tag_specifications).resource_type == "network-interface"
    error_message = "A worker may be on-demand beside spot instances: nothing is said about a spot request then."
  }

  assert {
    condition     = alltrue([for spec in aws_launch_template.this["workers"].tag_specifications : spec.tags["clusterctl:cluster"] == "standalone"]) && join(",", aws_launch_template.this["workers"].tag_specifications[*].resource_type) == "network-interface,spot-instances-request"
    error_message = "Network interfaces and requests for spot instances carry the cluster's tag."
  }

  assert {
    condition     = length(aws_launch_template.this["workers"].network_interfaces) == 0 && one(aws_launch_template.this["launcher"].tag_specifications).resource_type == "network-interface"
    error_message = "A template says nothing about the kind of network, and the launcher's nothing about spot instances."
  }

  assert {
    condition     = one(aws_security_group.ssh.ingress).from_port == 22 && one(one(aws_security_group.ssh.ingress).cidr_blocks) == "203.0.113.7/32"
    error_message = "SSH is open to one address."
  }

  assert {
    condition     = length(aws_instance.this["launcher"].vpc_security_group_ids) == 2 && length(aws_instance.this["worker-1"].vpc_security_group_ids) == 1
    error_message = "The launcher alone is in the group that lets SSH in."
  }

  assert {
    condition     = alltrue([for node in aws_instance.this : length(node.credit_specification) == 0])
    error_message = "Only burstable types have CPU credits."
  }

  assert {
    condition     = aws_subnet.this["own"].availability_zone == "us-east-1c" && aws_instance.this["worker-1"].root_block_device[0].volume_size == 100
    error_message = "The zone that was named, and room for GPU images."
  }
}

run "efa" {
  command = apply

  variables {
    groups = [{ instance_type = "g5.8xlarge", image = "nvidia", count = 2 }]
    efa    = true
  }

  assert {
    condition     = one(aws_launch_template.this["workers"].network_interfaces).interface_type == "efa"
    error_message = "The workers' network interface is an EFA."
  }

  assert {
    condition     = one(aws_instance.this["worker-2"].launch_template).id == aws_launch_template.this["workers"].id && length(aws_launch_template.this["launcher"].network_interfaces) == 0
    error_message = "Workers are made from their template, the launcher has another."
  }

  assert {
    condition     = length([for rule in aws_security_group.nodes.egress : rule if coalesce(rule.self, false)]) == 1 && one(aws_security_group.nodes.ingress).self
    error_message = "EFA's traffic may leave and enter within the group."
  }

  assert {
    condition     = length(aws_placement_group.this) == 1 && contains(local.placement, "worker-1")
    error_message = "EFA is fast within a placement group, also before a second worker comes."
  }
}

run "efa_on_all_cards" {
  command = apply

  variables {
    groups = [
      { instance_type = "p4d.24xlarge", image = "nvidia", count = 2 },
      { instance_type = "g5.8xlarge", image = "nvidia", count = 1 },
    ]
    efa       = true
    efa_cards = { "p4d.24xlarge" = ["efa", "efa-only", "efa-only", "efa-only"] }
    private   = true
  }

  assert {
    condition = [
      for card in aws_launch_template.this["p4d.24xlarge"].network_interfaces :
      [card.network_card_index, card.device_index, card.interface_type]
      ] == [
      [0, 0, "efa"], [1, 1, "efa-only"], [2, 1, "efa-only"], [3, 1, "efa-only"]
    ]
    error_message = "Each network card has one interface: device 0 on the first card, 1 on the others."
  }

  assert {
    condition     = alltrue([for card in aws_launch_template.this["p4d.24xlarge"].network_interfaces : card.associate_public_ip_address == null])
    error_message = "EC2 refuses a word about public addresses where there are several interfaces."
  }

  assert {
    condition     = one(aws_launch_template.this["workers"].network_interfaces).associate_public_ip_address == "false" && aws_launch_template.this["p4d.24xlarge"].name == "standalone-p4d-24xlarge"
    error_message = "Types with one card share a template."
  }

  assert {
    condition     = one(aws_instance.this["worker-2"].launch_template).id == aws_launch_template.this["p4d.24xlarge"].id && one(aws_instance.this["worker-3"].launch_template).id == aws_launch_template.this["workers"].id
    error_message = "Each worker is made from the template of its type."
  }
}

run "private" {
  command = apply

  variables {
    private = true
  }

  assert {
    condition     = aws_instance.this["launcher"].associate_public_ip_address && !aws_instance.this["worker-1"].associate_public_ip_address && !aws_instance.this["worker-2"].associate_public_ip_address
    error_message = "The launcher alone has a public address."
  }

  assert {
    condition     = aws_instance.this["launcher"].subnet_id == aws_subnet.this["own"].id && aws_instance.this["worker-1"].subnet_id == aws_subnet.private["own"].id && aws_nat_gateway.this["own"].subnet_id == aws_subnet.this["own"].id
    error_message = "Workers are in a subnet of their own, the NAT gateway in the launcher's."
  }

  assert {
    condition     = one(aws_route_table.private["own"].route).nat_gateway_id == aws_nat_gateway.this["own"].id && aws_subnet.private["own"].cidr_block == "10.77.16.0/20" && aws_subnet.private["own"].availability_zone == aws_subnet.this["own"].availability_zone
    error_message = "The workers' way to the internet is the NAT gateway, in the same zone."
  }
}

run "private_in_subnets_of_theirs" {
  command = apply

  variables {
    private            = true
    subnet_id          = "subnet-0123"
    launcher_subnet_id = "subnet-0456"
  }

  override_data {
    target = data.aws_subnet.theirs
    values = { vpc_id = "vpc-0123", id = "subnet-0123" }
  }

  assert {
    condition     = length(aws_vpc.this) + length(aws_subnet.private) + length(aws_nat_gateway.this) + length(aws_eip.nat) + length(aws_route_table.private) == 0
    error_message = "Nothing is made where there is a network."
  }

  assert {
    condition     = aws_instance.this["launcher"].subnet_id == "subnet-0456" && aws_instance.this["worker-1"].subnet_id == "subnet-0123"
    error_message = "Launcher and workers have the subnets that were named for them."
  }
}

run "no_efa_unless_wanted" {
  command = apply

  variables {
    groups = [{ instance_type = "g5.8xlarge", image = "nvidia", count = 1 }]
  }

  assert {
    condition     = length(aws_launch_template.this["workers"].network_interfaces) == 0 && length(aws_security_group.nodes.egress) == 1
    error_message = "EFA has to be asked for."
  }
}

run "an_unknown_family" {
  command = plan

  variables {
    groups = [{ family = "g4dm", count = 1 }]
  }

  expect_failures = [aws_instance.this["worker-1"]]
}

run "wrong_values" {
  command = plan

  variables {
    groups   = [{ count = 0 }]
    cidr     = "10.0.0.0/24"
    ssh_cidr = "me"
    disk     = 1
  }

  expect_failures = [var.groups, var.cidr, var.ssh_cidr, var.disk]
}

run "no_zone_has_all" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_type_offerings.this
    values = { locations = [] }
  }

  expect_failures = [aws_subnet.this["own"]]
}

run "through_an_endpoint" {
  command = apply

  variables {
    instance_connect = true
  }

  assert {
    condition     = one(aws_security_group.ssh.ingress).security_groups == toset([aws_security_group.endpoint["own"].id]) && try(length(one(aws_security_group.ssh.ingress).cidr_blocks), 0) == 0
    error_message = "SSH comes from the endpoint alone."
  }

  assert {
    condition     = one(aws_security_group.endpoint["own"].egress).security_groups == toset([aws_security_group.nodes.id]) && one(aws_security_group.endpoint["own"].egress).to_port == 22 && try(length(aws_security_group.endpoint["own"].ingress), 0) == 0
    error_message = "The endpoint reaches SSH of the nodes, and nothing else."
  }

  assert {
    condition     = aws_ec2_instance_connect_endpoint.this["own"].subnet_id == aws_instance.this["launcher"].subnet_id && aws_instance.this["launcher"].associate_public_ip_address
    error_message = "It is in the launcher's subnet, and the launcher fetches packages by its own address."
  }

  assert {
    condition     = output.nodes[0].endpoint == "${aws_ec2_instance_connect_endpoint.this["own"].id}/${aws_ec2_instance_connect_endpoint.this["own"].dns_name}" && output.nodes[1].endpoint == null
    error_message = "The launcher's row says how to get there."
  }
}

run "without_any_public_address" {
  command = apply

  variables {
    instance_connect = true
    private          = true
  }

  assert {
    condition     = alltrue([for node in aws_instance.this : !node.associate_public_ip_address && node.subnet_id == aws_subnet.private["own"].id])
    error_message = "No machine has a public address, and all are behind the NAT gateway."
  }

  assert {
    condition     = aws_ec2_instance_connect_endpoint.this["own"].subnet_id == aws_subnet.private["own"].id
    error_message = "The endpoint needs no way to the internet."
  }
}

run "through_an_endpoint_of_theirs" {
  command = plan

  variables {
    instance_connect = true
    endpoint_groups  = ["sg-0123"]
  }

  assert {
    condition     = length(aws_ec2_instance_connect_endpoint.this) + length(aws_security_group.endpoint) == 0
    error_message = "A VPC can have one endpoint: none is made where there is one."
  }

  assert {
    condition     = one(aws_security_group.ssh.ingress).security_groups == toset(["sg-0123"])
    error_message = "SSH comes from their endpoint."
  }
}
